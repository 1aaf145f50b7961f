#include "server/load/member_reading.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "server/collective/scatter_reader.h"
#include "server/load/part_reader.h"
#include "server/load/rank_load.h"

namespace ckptd {
namespace {

// The same path may lead to other files on another host. Copies have no ctime in
// common; a shared file whose ctime moves is noticed by the leader, at its end.
absl::Status CheckSameFiles(const CheckpointIndex& ours, const CheckpointIndex& leaders) {
  bool same = ours.files.size() == leaders.files.size();
  std::string file = leaders.source;
  for (size_t i = 0; same && i < ours.files.size(); ++i) {
    const SourceFile& a = ours.files[i];
    const SourceFile& b = leaders.files[i];
    file = b.path;
    same = IsSameOrCopy(a, b);
  }
  if (same) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                   fmt::format("reading {}: on this host it has another size, header or time of "
                               "change than where rank 0 runs; use storage that all hosts share or "
                               "copies that keep their times (cp -p), or load with --reader rank0",
                               file),
                   {{"file", file}});
}

absl::StatusOr<std::shared_ptr<const GroupPlan>> PlanTargets(
    const PreparedLoad& incoming, std::shared_ptr<const CheckpointIndex> index,
    const ReadOrder& order) {
  std::vector<Cohort> cohorts = order.cohorts;
  if (!IsRankForm(incoming.request())) {
    std::vector<uint32_t> ranks;
    for (const ReadOrder::Target& target : order.targets) ranks.push_back(target.who.rank);
    CKPTD_ASSIGN_OR_RETURN(cohorts, CohortsOf(incoming.request(), *index, ranks, {}));
  }
  CKPTD_ASSIGN_OR_RETURN(GroupPlan plan,
                         GroupPlan::Make(std::move(index), cohorts, incoming.request().policy));
  for (const ReadOrder::Target& target : order.targets) {
    const PlannedRank* const planned = plan.Find(target.who.rank);
    const uint64_t digest = planned == nullptr ? 0 : planned->digest;
    if (digest == target.rank_digest) continue;
    return MakeError(absl::StatusCode::kInternal, reason::kPlanMismatch,
                     fmt::format("planning rank {} to read for it: its plan digest is {}, the "
                                 "leader's {}; run the same ckptd on every rank",
                                 target.who.rank, HexDigest(digest),
                                 HexDigest(target.rank_digest)));
  }
  return std::make_shared<const GroupPlan>(std::move(plan));
}

absl::Status Interrupted(const MemberReading& parts, const ExecuteCall& call) {
  // Not whether its memory has gone: who reads into it holds it.
  if (parts.catalog.LoadingMemory(call.name) == nullptr) {
    return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                     "reading for " + call.name + ": the load is over; load again");
  }
  if (parts.stopping.load(std::memory_order_relaxed)) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDraining,
                     fmt::format("reading for {}: the daemon of rank {} is stopping; load again "
                                 "when it is back",
                                 call.name, parts.rank));
  }
  if (Clock::now() < call.deadline) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   "reading for " + call.name + ": the timeout passed; load again with a longer one");
}

absl::StatusOr<ReadReport> OpenAndRead(const MemberReading& parts, PreparedLoad& incoming,
                                       const ExecuteCall& call) {
  const SourceAccess access = parts.reading.AccessFor(incoming.request());
  CKPTD_ASSIGN_OR_RETURN(CheckpointIndex opened, OpenCheckpoint(incoming.request().source, access));
  CKPTD_RETURN_IF_ERROR(CheckSameFiles(opened, incoming.index()));
  const auto index = std::make_shared<const CheckpointIndex>(std::move(opened));
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<const GroupPlan> plan,
                         PlanTargets(incoming, index, call.read));
  std::vector<ReadTarget> targets;
  for (const ReadOrder::Target& target : call.read.targets) {
    targets.push_back({target.who, plan->Find(target.who.rank), target.prepared,
                       parts.connect(target.who)});
  }
  // The leader has said what a communicator carries.
  const CommChoice comm = call.scatter.has_value() ? CommChoice::kNccl : CommChoice::kHost;
  PartReader reader({parts.catalog, parts.peers, parts.rank, parts.secret, comm},
                    {call.epoch, call.name, call.deadline, plan,
                     [&parts, &call] { return Interrupted(parts, call); }},
                    std::move(targets));
  CKPTD_RETURN_IF_ERROR(reader.Connect());
  TransferOptions options;
  options.part = call.read.part;
  options.parts = call.read.parts;
  options.threads = parts.reading.threads;
  options.io_mode = parts.reading.io_mode;
  options.access = access;
  options.digests = incoming.request().digests && options.parts == 1;
  options.interrupted = [&] { return Interrupted(parts, call); };
  const auto counters = std::make_shared<TransferProgress>(reader.target_count());
  parts.own.Begin(call.name, reader.Begun(), counters);
  auto report =
      reader.Read(options, call.scatter.has_value() ? &*call.scatter : nullptr, *counters);
  parts.own.End(report.ok());
  CKPTD_RETURN_IF_ERROR(report.status());
  incoming.NoteCarried(reader.carried_bytes());
  CKPTD_RETURN_IF_ERROR(CheckUnchanged(*index, access));
  if (incoming.request().intended != AttachMode::kExclusive) reader.Keep();
  return report;
}

}  // namespace

absl::StatusOr<ReadReport> ReadForLeader(const MemberReading& parts, PreparedLoad& incoming,
                                         const ExecuteCall& call) {
  // From now on others wait for this rank, not it for them: storage may take a while to open files.
  const auto opening = std::make_shared<TransferProgress>(0);
  opening->busy = true;
  parts.own.Begin(call.name, ReadReport(), opening);
  absl::StatusOr<ReadReport> report = OpenAndRead(parts, incoming, call);
  if (!report.ok()) parts.own.End(false);
  return report;
}

absl::Status ReceiveScatter(const MemberReading& parts, PreparedLoad& incoming,
                            const ExecuteCall& call) {
  const ScatterCall& scatter = *call.scatter;
  const ScatterOrder order = OrderScatter(incoming.index(), scatter.size);
  CKPTD_RETURN_IF_ERROR(CheckScatterDigest(scatter, order, incoming.plan().digest));
  CKPTD_ASSIGN_OR_RETURN(const WholeTensors whole,
                         WholeTensors::Of(incoming.index(), scatter.whole));
  CKPTD_ASSIGN_OR_RETURN(const RankPlan plan, incoming.PlanCopies());
  ScatterExchange exchange(scatter, order, whole, call.deadline,
                           [&] { return Interrupted(parts, call); });
  const auto counters = std::make_shared<TransferProgress>(0);
  exchange.CountIn(*counters);
  ScatterExchange::Own own{&plan, nullptr};
  {
    const std::shared_ptr<ShardMemory> memory = parts.catalog.LoadingMemory(call.name);
    if (memory == nullptr) return CheckpointNotFound(call.name);
    // The slab alone: once the load has failed its entry lets go, which ends the waiting.
    own.slab = memory->View().staged;
  }
  CKPTD_RETURN_IF_ERROR(exchange.SetOwn(std::move(own)));
  parts.own.Begin(call.name, ReadReport(), counters);
  const absl::Status carried =
      CarryOut(parts.peers.comms, scatter, call.name, call.deadline, exchange);
  parts.own.End(carried.ok());
  CKPTD_RETURN_IF_ERROR(carried);
  incoming.NoteCarried(exchange.received_bytes());
  return absl::OkStatus();
}

}  // namespace ckptd

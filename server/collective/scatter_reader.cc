#include "server/collective/scatter_reader.h"

#include <algorithm>
#include <future>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/base/at_once.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// Only the communicator's first rank counts seconds. Other ranks cannot tell whether a reader
// still opens its files, and are told. An error about a dropped communicator would say less, too.
// Heartbeats report dead ranks sooner.
Deadline JoinDeadline(const ScatterCall& call, Deadline deadline) {
  if (call.rank != 0 || LeaderKnowsReaders(call)) return deadline;
  return std::min<Deadline>(deadline, Clock::now() + JoinPatience(call));
}

}  // namespace

absl::Status CheckScatterDigest(const ScatterCall& call, const ScatterOrder& order,
                                uint64_t rank_digest) {
  const uint64_t ours = ScatterDigest(call, order, rank_digest);
  if (ours == call.digest) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, reason::kPlanMismatch,
                   fmt::format("taking part in a scatter: the digest of this rank's order of "
                               "operations is {}, the leader's {}; run the same ckptd on every "
                               "rank",
                               HexDigest(ours), HexDigest(call.digest)));
}

absl::Status CarryOut(CommunicatorCache& comms, const ScatterCall& call, const std::string& name,
                      Deadline deadline, ScatterExchange& exchange) {
  exchange.SetJoining(true);
  const absl::StatusOr<GroupComm*> comm =
      comms.Join({call.comm_id, call.rank, call.ranks, name,
                  [&exchange] { return exchange.Interrupted(); }},
                 JoinDeadline(call, deadline));
  exchange.SetJoining(false);
  absl::Status status = comm.status();
  if (status.ok()) {
    status = exchange.Run(**comm);
  } else {
    exchange.Stop(status);
  }
  comms.Done(status);
  return status;
}

ScatterReader::ScatterReader(Parts parts, const ScatterCall& call)
    : parts_(std::move(parts)),
      call_(call),
      order_(OrderScatter(parts_.plan.index(), call.size)) {}

const ScatterReader::Target* ScatterReader::Own() const {
  const auto own = std::find_if(targets_.begin(), targets_.end(),
                                [](const Target& target) { return target.own; });
  return own == targets_.end() ? nullptr : &*own;
}

absl::StatusOr<RankPlan> ScatterReader::WholePlan(const PlannedRank& rank) const {
  const PlannedRank* const one = &rank;
  const auto windows =
      parts_.plan.Windows({&one, 1}, std::numeric_limits<uint64_t>::max());
  return parts_.plan.OpenWindow(windows.front()).PlanOf(rank);
}

ScatterExchange::OutBuffer ScatterReader::AddReplicas(const ReplicaSet& set,
                                                      std::vector<size_t> counters) {
  ScatterExchange::OutBuffer out_buffer;
  out_buffer.replicas = set.ranks;
  out_buffer.target = step_targets_.size();
  out_buffer.slab_bytes = set.plan->slab_bytes;
  out_buffer.own = std::binary_search(set.ranks.begin(), set.ranks.end(), call_.rank);
  StepTarget target;
  target.rank = set.plan;
  target.counters = std::move(counters);
  if (!whole_.empty()) target.only = [this](const CopyOp& op) { return !whole_.Has(op); };
  step_targets_.push_back(std::move(target));
  return out_buffer;
}

absl::Status ScatterReader::Connect(ScatterExchange& exchange) {
  std::vector<const PlannedRank*> plans(call_.ranks.size());
  std::vector<const Target*> at(call_.ranks.size());
  for (const Target& target : targets_) {
    const auto rank = std::find(call_.ranks.begin(), call_.ranks.end(), target.rank);
    if (target.own || target.slab.empty()) {
      if (rank == call_.ranks.end()) continue;  // a mapped rank, or a slab without bytes
      const auto number = static_cast<size_t>(rank - call_.ranks.begin());
      plans[number] = target.plan;
      at[number] = &target;
      continue;
    }
    step_targets_.push_back({target.plan, {target.slab}, {target.counter}});
  }
  std::vector<ScatterExchange::OutBuffer> out_buffers;
  if (!whole_.empty()) AddWhole(out_buffers);  // first, in the order in which receivers expect them
  const std::vector<ReplicaSet> sets = FindReplicas(plans);
  for (const ReplicaSet& set : sets) {
    std::vector<size_t> counters;
    for (const uint32_t rank : set.ranks) counters.push_back(at[rank]->counter);
    out_buffers.push_back(AddReplicas(set, std::move(counters)));
  }
  std::vector<std::unique_ptr<TransitMemory>> transit;
  for (size_t view = 0; view < ScatterExchange::kViews; ++view) {
    CKPTD_ASSIGN_OR_RETURN(transit.emplace_back(), parts_.transit.MakeTransit());
  }
  exchange.SetOutBuffers(out_buffers, std::move(transit), parts_.make_room);
  for (size_t i = 0; i < out_buffers.size(); ++i) {
    step_targets_[out_buffers[i].target].views = exchange.ViewsOf(i);
  }
  return absl::OkStatus();
}

absl::Status ScatterReader::FindWhole() {
  CKPTD_ASSIGN_OR_RETURN(whole_, WholeTensors::Of(parts_.plan.index(), call_.whole));
  if (whole_.empty() || Own() != nullptr) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, reason::kPlanMismatch,
                   "broadcasting tensors: this rank is to read them and does not hold them; run "
                   "the same ckptd on every rank");
}

void ScatterReader::AddWhole(std::vector<ScatterExchange::OutBuffer>& out_buffers) {
  const Target* const own = Own();
  ScatterExchange::OutBuffer out_buffer;
  out_buffer.target = step_targets_.size();
  out_buffer.own = out_buffer.whole = true;
  StepTarget target;
  target.rank = own->plan;
  target.only = [this](const CopyOp& op) { return whole_.Has(op); };
  target.counters = {own->counter};
  for (const Target& other : targets_) {
    const bool here = std::count(call_.ranks.begin(), call_.ranks.end(), other.rank) > 0;
    if (here && !other.own) target.counters.push_back(other.counter);
  }
  step_targets_.push_back(std::move(target));
  out_buffers.push_back(std::move(out_buffer));
}

absl::StatusOr<TransferResult> ScatterReader::Run(TransferOptions options,
                                                  TransferProgress& progress) {
  const Target* const own = Own();
  CKPTD_RETURN_IF_ERROR(
      CheckScatterDigest(call_, order_, own == nullptr ? 0 : own->plan->digest));
  CKPTD_RETURN_IF_ERROR(FindWhole());
  ScatterExchange exchange(call_, order_, whole_, parts_.deadline, options.interrupted);
  exchange.CountIn(progress);
  if (own != nullptr) {
    ScatterExchange::Own mine;
    mine.slab = own->slab.staged;
    if (call_.readers.size() > 1) {
      CKPTD_ASSIGN_OR_RETURN(own_plan_, WholePlan(*own->plan));
      mine.plan = &own_plan_;
    }
    CKPTD_RETURN_IF_ERROR(exchange.SetOwn(std::move(mine)));
  }
  CKPTD_RETURN_IF_ERROR(Connect(exchange));
  options.digests = false;  // each rank computes its own from what it received
  options.part = 0;
  options.parts = 1;
  const StepList steps{&order_, exchange.OwnSteps()};
  CKPTD_ASSIGN_OR_RETURN(auto transfer, Async("reading for other ranks", [&] {
    auto result = RunTransfer(parts_.plan, steps, step_targets_, options, progress, exchange);
    if (!result.ok()) exchange.Stop(result.status());
    return result;
  }));
  const absl::Status carried = CarryOut(parts_.comms, call_, parts_.name, parts_.deadline, exchange);
  absl::StatusOr<TransferResult> result = transfer.get();
  CKPTD_RETURN_IF_ERROR(carried);
  carried_bytes_ = exchange.received_bytes();
  return result;
}

}  // namespace ckptd

// The transfer of a load: who reads what, the leader's own share, and the sum of
// all.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "server/collective/scatter_exchange.h"
#include "server/load/error_priority.h"
#include "server/load/load_runner.h"
#include "server/load/transport_choice.h"
#include "server/protocol/timing.h"

namespace ckptd {

std::vector<ReaderShare> LoadRunner::Shares() const {
  std::vector<uint32_t> ranks;
  std::vector<std::string> hosts;
  for (const Participant& participant : participants_) {
    ranks.push_back(participant.rank);
    hosts.push_back(session_.identities[participant.rank].host);
  }
  return ShareReading(reader_, ranks, hosts);
}

std::optional<uint32_t> LoadRunner::RankWithActiveLease() const {
  // It reads, also where it has its shard already.
  if (parts_.leases != nullptr && !parts_.leases->Empty()) return 0;
  for (const Participant& one : participants_) {
    if (one.reply.has_leases) return one.rank;
  }
  return std::nullopt;
}

void LoadRunner::ChooseComm(const std::vector<ReaderShare>& shares) {
  TransportFacts facts;
  facts.asked = parts_.reading.comm;
  facts.communicator = parts_.peers.comms.version();
  facts.no_communicator = parts_.peers.comms.why_none();
  facts.failed_before = !parts_.peers.comms.EnabledFor(session_.epoch);
  facts.one_reader = shares.empty() || shares.front().parts == 1;
  facts.busy_rank = RankWithActiveLease();
  for (const Participant& one : participants_) {
    facts.ranks.push_back({one.rank, session_.identities[one.rank].host, one.reply.communicator,
                           one.reply.no_communicator});
  }
  TransportChoice choice = ChooseTransport(facts);
  if (!choice.remark.empty()) Log(LogLevel::kInfo, "{}: {}", load_.name, choice.remark);
  comm_ = choice.comm;
  no_comm_ = std::move(choice.no_comm);
}

PartReader LoadRunner::MakeReader(const ReaderShare& share) const {
  std::vector<ReadTarget> targets;
  for (const Participant& participant : participants_) {
    const uint32_t rank = participant.rank;
    if (!std::binary_search(share.targets.begin(), share.targets.end(), rank)) continue;
    targets.push_back({session_.identities[rank], participant.plan, participant.reply,
                       session_.links[rank]});
  }
  return PartReader({parts_.catalog, parts_.peers, 0, parts_.membership.secret(), comm_, no_comm_},
                    {session_.epoch, load_.name, load_.deadline, plan_,
                     [this] { return Interrupted(); }},
                    std::move(targets));
}

std::vector<Cohort> LoadRunner::LayoutsOf(const std::vector<uint32_t>& ranks) const {
  if (!IsRankForm(load_.request)) return {};
  std::vector<std::shared_ptr<const RankLayout>> layouts;
  for (const uint32_t rank : ranks) layouts.push_back(load_.layouts[rank]);
  return JoinEqual(layouts);
}

ReadOrder LoadRunner::OrderFor(const ReaderShare& share, const std::vector<Cohort>& cohorts) const {
  ReadOrder order;
  order.part = share.part;
  order.parts = share.parts;
  order.cohorts = cohorts;
  for (const Participant& participant : participants_) {
    const uint32_t rank = participant.rank;
    if (!std::binary_search(share.targets.begin(), share.targets.end(), rank)) continue;
    order.targets.push_back(
        {session_.identities[rank], participant.plan->digest, participant.reply});
  }
  return order;
}

absl::Status LoadRunner::PlanScatters(const std::vector<ReaderShare>& shares,
                                      const PartReader* own) {
  const auto plan_of = [this](uint32_t rank) -> const PlannedRank* {
    const Participant* const one = Find(rank);
    return one == nullptr ? nullptr : one->plan;
  };
  const ScatterPlan::Load load{*index_, *plan_, plan_of,
                               [this](const auto& ranks) { return CommunicatorFor(ranks); },
                               session_.links.size()};
  for (const ReaderShare& share : shares) {
    std::vector<uint32_t> ranks;
    if (comm_ == CommChoice::kNccl) {
      std::remove_copy(share.targets.begin(), share.targets.end(), std::back_inserter(ranks),
                       share.rank);
    } else if (own != nullptr && share.rank == 0) {
      ranks = own->via_communicator();
    }
    // Readers of parts are all in one communicator.
    if (ranks.empty() || share.part > 0) continue;
    ranks.insert(ranks.begin(), share.rank);
    CKPTD_RETURN_IF_ERROR(scatters_.Add(load, share, ranks));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LoadRunner::CommunicatorFor(const std::vector<uint32_t>& ranks) {
  CommunicatorCache& comms = parts_.peers.comms;
  std::vector<std::string> held;
  if (std::count(ranks.begin(), ranks.end(), 0) > 0) held.push_back(comms.held_id());
  for (const Participant& participant : participants_) {
    const bool member = std::count(ranks.begin(), ranks.end(), participant.rank) > 0;
    if (member && participant.rank != 0) held.push_back(participant.reply.communicator_id);
  }
  return comms.IdFor(session_.epoch, ranks, held);
}

void LoadRunner::StartMembers(const std::vector<ReaderShare>& shares) {
  std::vector<ExecuteFanout::Member> members;
  for (const Participant& participant : participants_) {
    const uint32_t rank = participant.rank;
    members.push_back({rank, session_.links[rank]});
    if (scatters_.Contains(rank)) {
      members.back().scatter = [this, rank] { return *scatters_.CallOf(rank); };
    }
  }
  const std::vector<uint32_t>* last = nullptr;  // readers of parts have the same targets
  std::shared_ptr<const std::vector<Cohort>> cohorts;
  for (const ReaderShare& share : shares) {
    if (last == nullptr || *last != share.targets) {
      cohorts = std::make_shared<const std::vector<Cohort>>(LayoutsOf(share.targets));
    }
    last = &share.targets;
    for (ExecuteFanout::Member& member : members) {
      if (member.rank != share.rank || share.rank == 0) continue;
      member.read = [this, &share, cohorts] { return OrderFor(share, *cohorts); };
    }
  }
  ExecuteFanout::Load load{session_.epoch, load_.name, load_.deadline};
  load.answered = [this](const ReadReport& report) {
    Count(report);
    meter_.Update(report);
  };
  load.cancelled = [this]() -> absl::Status {
    CKPTD_RETURN_IF_ERROR(load_.state->cancelled());
    return CheckStalled(timing::kStragglersNamedFirst);
  };
  // Replicas connect to each other when the readers have done their part.
  load.patience = std::max(load.patience, scatters_.Patience());
  load.failing = [this] { load_.state->Fail(); };
  fanout_ = std::make_unique<ExecuteFanout>(std::move(members), std::move(load),
                                            [this] { return ShowProgress(); });
}

absl::Status LoadRunner::Read(const ReaderShare& share, PartReader& reader) {
  TransferProgress counters(reader.target_count());
  meter_.Attach(reader.Begun(), counters);
  const std::optional<ScatterCall> scatter = scatters_.CallOf(0);
  TransferOptions options;
  options.part = share.part;
  options.parts = share.parts;
  options.threads = parts_.reading.threads;
  options.io_mode = parts_.reading.io_mode;
  options.access = access_;
  options.digests = load_.request.digests && share.parts == 1;
  options.interrupted = [this, &counters, &scatter]() -> absl::Status {
    CKPTD_RETURN_IF_ERROR(fanout_->broken().second);
    if (scatter.has_value()) exchanges_.Note(0, counters.exchanges, counters.busy);
    const bool joining = counters.joining && LeaderKnowsReaders(*scatter);
    CKPTD_RETURN_IF_ERROR(joining ? exchanges_.CheckJoinTimeout(JoinPatience(*scatter)) : CheckStalled({}));
    return Interrupted();
  };
  access_.watch->Hold(reader.own_bytes());
  // A communicator is for one load at a time.
  const auto report =
      scatter.has_value()
          ? reader.Read(options, &*scatter, counters)
          : OnlyRead([&] { return reader.Read(options, nullptr, counters); });
  access_.watch->Hold(0);
  meter_.Detach();
  ShowProgress();
  const absl::Status own = report.status();
  const auto [rank, status] = IsSecondary(own) ? fanout_->AwaitBroken() : fanout_->broken();
  if (!status.ok() && !Outranks(own, status)) return AttributeToRank(rank, ProbeUnresponsive(status));
  if (!own.ok()) return AttributeByFacts(WaitForStragglers(ProbeUnresponsive(own)));
  Count(*report);
  if (Participant* const own_part = Find(0); own_part != nullptr) {
    own_part->carried_bytes = reader.carried_bytes();
  }
  return OnlyRead([this] { return CheckUnchanged(*index_, access_); });
}

absl::Status LoadRunner::Transfer() {
  std::map<uint32_t, uint64_t> expected;
  for (const Participant& participant : participants_) {
    expected[participant.rank] = participant.plan->tensor_bytes;
  }
  meter_.Expect(std::move(expected));
  const std::vector<ReaderShare> shares = Shares();
  ChooseComm(shares);
  const bool reads = !shares.empty() && shares.front().rank == 0;
  std::optional<PartReader> own;
  if (reads) {
    own.emplace(MakeReader(shares.front()));
    if (const absl::Status reached = own->Connect(); !reached.ok()) return AttributeByFacts(reached);
  }
  if (const absl::Status planned = PlanScatters(shares, own.has_value() ? &*own : nullptr);
      !planned.ok()) {
    return AttributeByFacts(planned);
  }
  CKPTD_RETURN_IF_ERROR(Interrupted());
  CKPTD_RETURN_IF_ERROR(Enter(LoadState::kTransferring));
  exchanges_.Note(0, 0, /*busy=*/true);  // from now on nobody stands still
  StartMembers(shares);
  if (reads) CKPTD_RETURN_IF_ERROR(Read(shares.front(), *own));
  if (const auto [rank, status] = fanout_->Finish(); !status.ok()) {
    const absl::Status why = ProbeUnresponsive(status);
    return rank == 0 ? AttributeByFacts(WaitForStragglers(why)) : AttributeToRank(rank, why);
  }
  // What clients are to own is never filled again: a mapping would outlive them.
  if (reads && load_.request.intended != AttachMode::kExclusive) own->Keep();
  return absl::OkStatus();
}

void LoadRunner::NoteReading(uint32_t rank, const ReadingNow& reading) {
  if (reading.name != load_.name) return;
  ReadReport report = reading.done;
  report.reader = rank;
  meter_.Update(report);
  exchanges_.Note(rank, report.exchanges, report.busy);
  if (reading.ended) exchanges_.Ended(rank);
}

void LoadRunner::DisableUnusedComm(const absl::Status& why) {
  // NCCL that cannot connect, or memory to send from that is not there; not a lost rank, nor a
  // load whose own time was over.
  const std::string reason = ReasonOf(why);
  const bool hung = reason == reason::kDeadline && Clock::now() < load_.deadline;
  const bool may = reason == reason::kNcclFailed || reason == reason::kNoMemory || hung;
  if (parts_.reading.comm != CommChoice::kAuto || !may) return;
  if (!exchanges_.Nothing()) return;
  parts_.peers.comms.DisableForEpoch(session_.epoch);
  Log(LogLevel::kWarn, "{}: nothing was exchanged by NCCL; until the group changes, loads go in "
      "streams, unless --comm nccl asks for it", load_.name);
}

absl::Status LoadRunner::CheckStalled(std::chrono::nanoseconds grace) {
  // Readers of parts are all in one communicator.
  const ScatterCall* const call = scatters_.first();
  if (call == nullptr || call->readers.size() < 2) return absl::OkStatus();
  // Heartbeats tell how far the others are.
  // Two of them may meet for the first time in any exchange.
  const auto patience =
      std::max(ScatterExchange::PatienceWith(call->ranks.size()),
               3 * parts_.membership.heartbeat_interval());
  if (Clock::now() - exchanges_.moved() < patience + grace) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("exchanging bytes by NCCL: no rank has read or received anything for "
                               "{:.0f} s; look at the GPUs and links between them, then load again, "
                               "or with --comm host",
                               std::chrono::duration<double>(patience).count()));
}

LoadRunner::Participant* LoadRunner::Find(uint32_t rank) {
  // They ascend, and with many readers each reports on many ranks.
  const auto at = std::lower_bound(
      participants_.begin(), participants_.end(), rank,
      [](const Participant& participant, uint32_t wanted) { return participant.rank < wanted; });
  return at == participants_.end() || at->rank != rank ? nullptr : &*at;
}

void LoadRunner::Count(const ReadReport& report) {
  for (const ReadReport::Filled& filled : report.filled) {
    Participant* const participant = Find(filled.rank);
    if (participant == nullptr) continue;
    participant->filled_bytes += filled.bytes;
    if (filled.streamed) participant->streamed_bytes += filled.bytes;
    if (!filled.digests.empty()) participant->digests = filled.digests;
  }
}

}  // namespace ckptd

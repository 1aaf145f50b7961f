// The transfer of a load: who reads what, the leader's own share, and the sum of
// all.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/checkpoint/open.h"
#include "server/core/load_runner.h"

namespace ckptd {

std::vector<ReaderShare> LoadRunner::Shares() const {
  std::vector<uint32_t> ranks;
  std::vector<std::string> hosts;
  for (const Participant& participant : participants_) {
    ranks.push_back(participant.rank);
    hosts.push_back(session_.identities[participant.rank].host);
  }
  return ShareReading(parts_.reader, ranks, hosts);
}

PartReader LoadRunner::MakeReader(const ReaderShare& share) const {
  std::vector<ReadTarget> targets;
  for (const Participant& participant : participants_) {
    const uint32_t rank = participant.rank;
    if (std::count(share.targets.begin(), share.targets.end(), rank) == 0) continue;
    targets.push_back({session_.identities[rank], participant.plan, participant.reply,
                       session_.links[rank]});
  }
  return PartReader({parts_.catalog, parts_.peer_memory, 0, parts_.membership.secret()},
                    {session_.epoch, load_.name, load_.deadline, plan_}, std::move(targets));
}

ReadOrder LoadRunner::OrderFor(const ReaderShare& share) const {
  ReadOrder order;
  order.part = share.part;
  order.parts = share.parts;
  for (const Participant& participant : participants_) {
    const uint32_t rank = participant.rank;
    if (std::count(share.targets.begin(), share.targets.end(), rank) == 0) continue;
    order.targets.push_back({session_.identities[rank], participant.plan->digest,
                             CallFor(participant).request.layout, participant.reply});
  }
  return order;
}

void LoadRunner::StartMembers(const std::vector<ReaderShare>& shares) {
  std::vector<ExecuteFanout::Member> members;
  for (const Participant& participant : participants_) {
    members.push_back({participant.rank, session_.links[participant.rank]});
  }
  for (const ReaderShare& share : shares) {
    for (ExecuteFanout::Member& member : members) {
      if (member.rank == share.rank && share.rank != 0) member.read = OrderFor(share);
    }
  }
  fanout_ = std::make_unique<ExecuteFanout>(
      std::move(members), ExecuteFanout::Load{session_.epoch, load_.name, load_.deadline},
      [this] { return ShowProgress(); });
}

absl::Status LoadRunner::Read(const ReaderShare& share, PartReader& reader) {
  TransferProgress counters(reader.target_count());
  meter_.Attach(reader.Begun(), counters);
  TransferOptions options;
  options.part = share.part;
  options.parts = share.parts;
  options.threads = parts_.reading.threads;
  options.way = parts_.reading.way;
  options.digests = load_.request.digests && share.parts == 1;
  options.interrupted = [this] {
    absl::Status broken = fanout_->broken().second;
    return broken.ok() ? Interrupted() : broken;
  };
  const auto report = reader.Read(options, counters);
  meter_.Detach();
  ShowProgress();
  if (const auto [rank, status] = fanout_->broken(); !status.ok()) return OfRank(rank, status);
  if (!report.ok()) return Blame(report.status());
  Count(*report);
  return CheckUnchanged(*index_);
}

absl::Status LoadRunner::Transfer() {
  std::map<uint32_t, uint64_t> expected;
  for (const Participant& participant : participants_) {
    expected[participant.rank] = participant.plan->tensor_bytes;
  }
  meter_.Expect(std::move(expected));
  const std::vector<ReaderShare> shares = Shares();
  const bool reads = !shares.empty() && shares.front().rank == 0;
  std::optional<PartReader> own;
  if (reads) {
    own.emplace(MakeReader(shares.front()));
    if (const absl::Status reached = own->Reach(); !reached.ok()) return Blame(reached);
  }
  CKPTD_RETURN_IF_ERROR(Interrupted());
  Enter(Stage::kTransferring);
  StartMembers(shares);
  if (reads) CKPTD_RETURN_IF_ERROR(Read(shares.front(), *own));
  if (const auto [rank, status] = fanout_->Finish(); !status.ok()) return OfRank(rank, status);
  for (const ReadReport& report : fanout_->reports()) {
    Count(report);
    meter_.Update(report);
  }
  return absl::OkStatus();
}

void LoadRunner::NoteReading(uint32_t rank, const ReadingNow& reading) {
  if (reading.name != load_.name) return;
  ReadReport report = reading.done;
  report.reader = rank;
  meter_.Update(report);
}

void LoadRunner::Count(const ReadReport& report) {
  for (const ReadReport::Filled& filled : report.filled) {
    for (Participant& participant : participants_) {
      if (participant.rank != filled.rank) continue;
      participant.filled_bytes += filled.bytes;
      if (filled.streamed) participant.streamed_bytes += filled.bytes;
      if (!filled.digests.empty()) participant.digests = filled.digests;
    }
  }
}

}  // namespace ckptd

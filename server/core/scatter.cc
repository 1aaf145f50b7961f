#include "server/core/scatter.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/plan_digest.h"

namespace ckptd {
namespace {

// Larger than any group, far below what would take memory.
constexpr uint32_t kMostRanks = 1 << 20;
// Of large files there must not be more steps than memory holds.
constexpr uint64_t kLeastStep = 1 << 20;
constexpr uint64_t kMostStep = uint64_t{1} << 34;

void Spell(const std::vector<uint32_t>& numbers, Spelling& out) {
  out.Number(numbers.size());
  for (const uint32_t number : numbers) out.Number(number);
}

bool AllBelow(const std::vector<uint32_t>& ranks, uint32_t size) {
  return std::all_of(ranks.begin(), ranks.end(), [size](uint32_t rank) { return rank < size; });
}

}  // namespace

bool LeaderKnowsReaders(const ScatterCall& call) {
  return call.readers.size() > 1 && std::count(call.ranks.begin(), call.ranks.end(), 0) > 0;
}

std::chrono::milliseconds JoinPatience(const ScatterCall& call) {
  return std::chrono::seconds(30) + std::chrono::milliseconds(30) * call.ranks.size();
}

uint64_t ScatterDigest(const ScatterCall& call, const ScatterOrder& order, uint64_t rank_digest) {
  Spelling out;
  out.Number(order.digest);
  out.Number(call.rank);
  Spell(call.ranks, out);
  Spell(call.readers, out);
  Spell(call.replicas, out);
  out.Number(call.fanout);
  Spell(call.whole, out);
  out.Number(rank_digest);
  return out.Digest();
}

absl::Status CheckScatterCall(const ScatterCall& call) {
  const auto size = static_cast<uint32_t>(std::min<size_t>(call.ranks.size(), kMostRanks));
  const bool fits =
      size >= 2 && size == call.ranks.size() && call.rank < size && !call.readers.empty() &&
      AllBelow(call.readers, size) && AllBelow(call.replicas, size) &&
      std::is_sorted(call.replicas.begin(), call.replicas.end(), std::less_equal<>()) &&
      std::count(call.replicas.begin(), call.replicas.end(), call.rank) == 1 &&
      std::is_sorted(call.whole.begin(), call.whole.end(), std::less_equal<>()) &&
      call.fanout >= 1 && call.size.step_bytes >= kLeastStep &&
      call.size.step_bytes <= kMostStep && call.size.step_tensors >= 1;
  if (fits) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("taking part in a scatter as rank {} of a communicator of {}: the "
                               "leader's call does not fit together; run the same ckptd on every "
                               "rank",
                               call.rank, call.ranks.size()));
}

ReplicaTree::ReplicaTree(std::span<const uint32_t> replicas, uint32_t reader, uint32_t fanout)
    : places_(replicas.begin(), replicas.end()), reader_(reader), fanout_(fanout) {
  // Readers take turns: so that each set's work is not always the same ranks', the tree
  // begins at another one for each.
  const auto own = std::find(places_.begin(), places_.end(), reader);
  const auto root = own != places_.end() ? own : places_.begin() + reader % places_.size();
  std::rotate(places_.begin(), root, places_.end());
}

size_t ReplicaTree::PlaceOf(uint32_t replica) const {
  return static_cast<size_t>(std::find(places_.begin(), places_.end(), replica) -
                             places_.begin());
}

std::vector<uint32_t> ReplicaTree::Below(size_t place) const {
  std::vector<uint32_t> below;
  for (size_t i = place * fanout_ + 1; i <= (place + 1) * fanout_ && i < places_.size(); ++i) {
    below.push_back(places_[i]);
  }
  return below;
}

std::vector<uint32_t> ReplicaTree::FromReader() const {
  if (places_.front() == reader_) return Below(0);
  return {places_.front()};
}

uint32_t ReplicaTree::ParentOf(uint32_t replica) const {
  const size_t place = PlaceOf(replica);
  return place == 0 ? reader_ : places_[(place - 1) / fanout_];
}

std::vector<uint32_t> ReplicaTree::ChildrenOf(uint32_t replica) const {
  return Below(PlaceOf(replica));
}

uint32_t ReplicaTree::DepthOf(uint32_t replica) const {
  uint32_t depth = 0;
  for (size_t place = PlaceOf(replica); place > 0; place = (place - 1) / fanout_) ++depth;
  return places_.front() == reader_ && depth > 0 ? depth - 1 : depth;
}

std::vector<ReplicaSet> FindReplicas(std::span<const PlannedRank* const> plans) {
  std::vector<ReplicaSet> sets;
  std::map<uint64_t, size_t> by_content;
  for (uint32_t rank = 0; rank < plans.size(); ++rank) {
    if (plans[rank] == nullptr) continue;
    const auto [at, fresh] = by_content.try_emplace(plans[rank]->content, sets.size());
    if (fresh) sets.push_back({plans[rank], {}});
    sets[at->second].ranks.push_back(rank);
  }
  return sets;
}

uint32_t FanoutFor(size_t sets) { return sets > 2 ? 2 : 1; }

}  // namespace ckptd

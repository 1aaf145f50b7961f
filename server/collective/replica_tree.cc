#include "server/collective/replica_tree.h"

#include <algorithm>
#include <map>

namespace ckptd {

ReplicaTree::ReplicaTree(std::span<const uint32_t> replicas, uint32_t reader, uint32_t fanout)
    : places_(replicas.begin(), replicas.end()), reader_(reader), fanout_(fanout) {
  // The root differs between readers, so that the ranks share the work of passing bytes on.
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

#include "server/load/known_checkpoints.h"

#include <algorithm>
#include <iterator>

namespace ckptd {

const KnownCheckpoint* KnownCheckpoints::Get(const std::string& name) const {
  const auto at = known_.find(name);
  return at == known_.end() ? nullptr : &at->second;
}

const KnownCheckpoint* KnownCheckpoints::Find(const Proposal& proposal) const {
  for (const auto& [name, known] : known_) {
    if (known.load_key != proposal.load_key || known.holders.empty()) continue;
    if (proposal.rank >= known.request_digests.size()) continue;
    if (known.request_digests[proposal.rank] == proposal.digest) return &known;
  }
  return nullptr;
}

const KnownCheckpoint* KnownCheckpoints::FindHeld(uint64_t load_key,
                                                  const std::vector<int32_t>& ranks) const {
  for (const auto& [name, known] : known_) {
    if (known.load_key != load_key) continue;
    const auto holds = [&known](int32_t rank) { return known.HeldBy(static_cast<uint32_t>(rank)); };
    if (std::any_of(ranks.begin(), ranks.end(), holds)) return &known;
  }
  return nullptr;
}

void KnownCheckpoints::Add(const std::string& name, uint64_t load_key,
                           const std::vector<uint64_t>& digests,
                           const std::vector<SourceFile>& files,
                           const std::set<uint32_t>& holders) {
  KnownCheckpoint& known = known_[name];
  known.name = name;
  known.load_key = load_key;
  known.files = files;
  known.request_digests.resize(world_size_, 0);
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    if (digests[rank] != 0) known.request_digests[rank] = digests[rank];
  }
  known.holders.insert(holders.begin(), holders.end());
  known.order = ++order_;
}

void KnownCheckpoints::DropHolders(const std::string& name, const std::set<uint32_t>& ranks) {
  const auto known = known_.find(name);
  if (known == known_.end()) return;
  for (const uint32_t rank : ranks) known->second.holders.erase(rank);
}

void KnownCheckpoints::DropRank(uint32_t rank) {
  for (auto at = known_.begin(); at != known_.end();) {
    at->second.holders.erase(rank);
    at = at->second.holders.empty() ? known_.erase(at) : std::next(at);
  }
}

bool KnownCheckpoints::SetResidents(uint32_t rank, uint64_t epoch,
                                    const std::vector<ResidentCheckpoint>& residents) {
  if (epoch < epochs_[rank]) return false;
  epochs_[rank] = epoch;
  DropRank(rank);
  for (const ResidentCheckpoint& resident : residents) {
    if (resident.request_digests.size() != world_size_) continue;
    KnownCheckpoint& known = known_[resident.name];
    if (known.name.empty()) {
      known = {resident.name, resident.load_key, resident.files, resident.request_digests, {},
               ++order_};
    }
    if (known.load_key == resident.load_key && known.request_digests == resident.request_digests) {
      known.holders.insert(rank);
    }
  }
  return true;
}

void KnownCheckpoints::Trim(size_t most, const std::function<bool(const std::string& name)>& keep) {
  while (known_.size() > most) {
    auto oldest = known_.end();
    for (auto at = known_.begin(); at != known_.end(); ++at) {
      if (keep(at->first)) continue;
      if (oldest == known_.end() || at->second.order < oldest->second.order) oldest = at;
    }
    if (oldest == known_.end()) return;
    known_.erase(oldest);
  }
}

}  // namespace ckptd

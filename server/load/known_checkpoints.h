// The checkpoints that ranks hold, with what they were loaded from and for: a proposal that asks for
// the same joins one of them. Not thread-safe: PendingLoads guards it.
#ifndef CKPTD_SERVER_LOAD_KNOWN_CHECKPOINTS_H_
#define CKPTD_SERVER_LOAD_KNOWN_CHECKPOINTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/load/proposal.h"
#include "server/protocol/domain.h"

namespace ckptd {

struct KnownCheckpoint {
  std::string name;
  uint64_t load_key = 0;
  std::vector<SourceFile> files;
  std::vector<uint64_t> request_digests;  // by rank
  std::set<uint32_t> holders;             // ranks
  uint64_t order = 0;                     // the one noted last has the highest

  bool HeldBy(uint32_t rank) const { return holders.count(rank) > 0; }
};

class KnownCheckpoints {
 public:
  explicit KnownCheckpoints(uint32_t world_size) : world_size_(world_size), epochs_(world_size) {}

  // By name; null: not known.
  const KnownCheckpoint* Get(const std::string& name) const;
  // The one that answers the proposal; null: none.
  const KnownCheckpoint* Find(const Proposal& proposal) const;
  // The one of that load key that any of these ranks holds; null: none.
  const KnownCheckpoint* FindHeld(uint64_t load_key, const std::vector<int32_t>& ranks) const;

  // A load has ended with these holders. `digests`: by rank, 0 for those that did not ask.
  void Add(const std::string& name, uint64_t load_key, const std::vector<uint64_t>& digests,
           const std::vector<SourceFile>& files, const std::set<uint32_t>& holders);
  void Erase(const std::string& name) { known_.erase(name); }
  // These ranks do not hold it, as it turned out.
  void DropHolders(const std::string& name, const std::set<uint32_t>& ranks);
  // A rank has joined and told all that it holds, or has left and holds nothing. False, and nothing
  // changes, where the rank has told something in a later `epoch`.
  bool SetResidents(uint32_t rank, uint64_t epoch,
                    const std::vector<ResidentCheckpoint>& residents);
  // Forgets those that were noted first until `most` are left; none that `keep` names.
  void Trim(size_t most, const std::function<bool(const std::string& name)>& keep);

 private:
  void DropRank(uint32_t rank);

  const uint32_t world_size_;
  uint64_t order_ = 0;
  std::map<std::string, KnownCheckpoint> known_;
  std::vector<uint64_t> epochs_;  // by rank, of what it has told
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_KNOWN_CHECKPOINTS_H_

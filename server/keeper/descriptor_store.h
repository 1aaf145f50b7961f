// Seam: a place outside of this process that holds descriptors by name, and gives them to the next
// process.
// Backends: server/keeper/keeper_client (`ckptd keep`), server/keeper/systemd_store,
// server/keeper/slab_folder.
#ifndef CKPTD_SERVER_KEEPER_DESCRIPTOR_STORE_H_
#define CKPTD_SERVER_KEEPER_DESCRIPTOR_STORE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// By name, sorted.
using StoredEntries = std::map<std::string, std::vector<UniqueFd>>;

// Thread-safe. Calls wait for the other side, at most a few seconds.
class DescriptorStore {
 public:
  virtual ~DescriptorStore() = default;
  // Duplicates of what an earlier process left, all of which is still stored. Errors: the system
  // has no descriptors left.
  virtual absl::StatusOr<StoredEntries> Entries() = 0;
  // Stores an entry: all of it, or, if this process dies meanwhile, nothing. It replaces one of the
  // same name. One that the store does not take is logged.
  virtual void Put(const std::string& name, std::vector<UniqueFd> fds) = 0;
  // When this returns, the store does not hold the entry any more, or nobody will get it.
  virtual void Remove(const std::string& name) = 0;
  virtual std::string endpoint() const = 0;
  virtual bool connected() const = 0;
};

// Errors: the system has no descriptors left.
absl::StatusOr<StoredEntries> Duplicates(const StoredEntries& entries);

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_DESCRIPTOR_STORE_H_

// The entries that a keeper holds, by owner. Pure: no I/O. Not thread-safe.
#ifndef CKPTD_SERVER_KEEPER_KEPT_ENTRIES_H_
#define CKPTD_SERVER_KEEPER_KEPT_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/posix.h"
#include "server/keeper/descriptor_store.h"

namespace ckptd {

class KeptEntries {
 public:
  static constexpr size_t kMaxNameBytes = 512;
  static constexpr size_t kMaxOwners = 1024;
  static constexpr size_t kMaxEntries = 65536;      // of one owner
  static constexpr uint32_t kMaxDescriptors = 1 << 20;  // of one entry

  // A connection of `owner` begins. Errors: FailedPrecondition CONFIG_INVALID if it has one,
  // InvalidArgument for a bad name, ResourceExhausted beyond kMaxOwners. `forget`: its entries go.
  absl::Status Begin(const std::string& owner, bool forget);
  // The connection has ended. Its entries stay, but for one that is not complete.
  void End(const std::string& owner);

  // The owner must have begun. Adds descriptors to the entry `name`, of which `to_come` follow. It
  // takes the place of an earlier one when 0 do. Another entry that is not complete is dropped, and
  // so is this one after an error. Errors: InvalidArgument; ResourceExhausted beyond the limits.
  absl::Status Put(const std::string& owner, const std::string& name, std::vector<UniqueFd> fds,
                   uint32_t to_come);
  // Also ends one that is not complete. Idempotent.
  void Remove(const std::string& owner, const std::string& name);

  // Gives all entries of the owner up.
  StoredEntries Take(const std::string& owner);
  // Empty if the owner is not known.
  const StoredEntries& Of(const std::string& owner) const;
  size_t owners() const { return owners_.size(); }

 private:
  struct Owner {
    bool connected = false;
    StoredEntries entries;
    // Not complete yet.
    std::string name;
    std::vector<UniqueFd> fds;
    uint32_t to_come = 0;
  };
  static absl::Status Append(Owner& owner, const std::string& name, std::vector<UniqueFd> fds,
                             uint32_t to_come);
  static void DropIncomplete(Owner& owner);

  std::map<std::string, Owner> owners_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_KEPT_ENTRIES_H_

#include "server/keeper/descriptor_store.h"

#include <utility>

#include "common/base/status.h"

namespace ckptd {

absl::StatusOr<StoredEntries> Duplicates(const StoredEntries& entries) {
  StoredEntries copy;
  for (const auto& [name, fds] : entries) {
    for (const UniqueFd& fd : fds) {
      CKPTD_ASSIGN_OR_RETURN(UniqueFd own, DuplicateFd(fd.get(), "duplicating a kept descriptor"));
      copy[name].push_back(std::move(own));
    }
  }
  return copy;
}

}  // namespace ckptd

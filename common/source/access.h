// On whose behalf a source is read, and what limits that. Plain values.
#ifndef CKPTD_COMMON_SOURCE_ACCESS_H_
#define CKPTD_COMMON_SOURCE_ACCESS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/caller.h"
#include "common/source/passed_files.h"
#include "common/source/path_text.h"
#include "common/source/storage_watch.h"

namespace ckptd {

// A daemon's, shared by all that read in it.
struct SourceRules {
  // Folders, absolute and without a slash at their end, that every file must lie in that is opened
  // by its path; empty: no limit. A file that a client passes it has opened itself.
  std::vector<std::string> roots;
  PassedFiles passed;
};

// The default reads what this process may read.
struct SourceAccess {
  std::shared_ptr<const SourceRules> rules = nullptr;  // null: none
  // A client of another user, which gets nothing that it could not read itself; unset: none.
  std::optional<Caller> guest = {};
  std::string job = {};  // whose passed files count
  std::shared_ptr<StorageWatch> watch = nullptr;  // is told of every call to storage; null: none

  PassedFiles::Owner owner() const { return {UserOf(guest), job}; }
  // Whether its client, or another one of its user and job, has passed it, or what it is a part of.
  bool IsPassed(const std::string& source) const {
    return rules != nullptr && (rules->passed.Has(owner(), source) ||
                                rules->passed.Has(owner(), SplitPart(source).path));
  }
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_ACCESS_H_

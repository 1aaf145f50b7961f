// Descriptors of files that clients have passed to this process: a client that could open a file
// itself lets the daemon read it, whatever the daemon's own rights and mounts are.
#ifndef CKPTD_COMMON_SOURCE_PASSED_FILES_H_
#define CKPTD_COMMON_SOURCE_PASSED_FILES_H_

#include <sys/types.h>

#include <compare>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/posix.h"

namespace ckptd {

// Thread-safe. Makes no system call but to close descriptors.
class PassedFiles {
 public:
  // Who passed a file, and for whom it counts alone: clients of one user and one job see the same
  // files under one path. Users and jobs apart may not.
  struct Owner {
    std::optional<uid_t> guest = {};  // unset: a client whom the daemon trusts
    std::string job = {};             // empty: not known
    auto operator<=>(const Owner&) const = default;
  };
  using Descriptor = std::shared_ptr<const UniqueFd>;
  // By the absolute path that the client has for each.
  using Files = std::map<std::string, Descriptor>;

  // They count until the result is destroyed, and whoever has found one keeps it. The newest of
  // one path counts. The result must not outlive this object.
  std::shared_ptr<const void> Add(const Owner& owner, Files files);

  // Null: none was passed for that path.
  Descriptor Find(const Owner& owner, const std::string& path) const;
  // The names of those that lie in a folder, sorted, each once; empty where none does: then the
  // folder is not known.
  std::vector<std::string> List(const Owner& owner, const std::string& folder) const;
  // Whether that is a passed file, or a folder that holds some.
  bool Has(const Owner& owner, const std::string& path) const;
  // All owners' together.
  size_t count() const;

 private:
  using Passes = std::list<std::shared_ptr<const Files>>;  // the newest first

  void Remove(const Owner& owner, const std::shared_ptr<const Files>& files);

  mutable Mutex mutex_;
  std::map<Owner, Passes> passes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_PASSED_FILES_H_

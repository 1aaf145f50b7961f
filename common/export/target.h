// Where tools write: a file or a folder that comes to be whole, or not at all.
#ifndef CKPTD_COMMON_EXPORT_TARGET_H_
#define CKPTD_COMMON_EXPORT_TARGET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// OK if there is a folder that `path` can lie in; else NotFound TARGET_INVALID, with fact "file".
absl::Status CheckFolderAbove(const std::string& path);

// All is written into a folder beside the target, of the same file system and with a name that no
// loader takes for a checkpoint, and renamed at the end. What a run left that was killed goes when
// the next one to the same target begins. Not thread-safe.
class Target {
 public:
  enum class Kind {
    kFolder,    // new, or empty
    kFile,      // new
    kReplaced,  // a file; one that is there is replaced
  };

  // `bytes`: how many will be written, about; 0: not known. Blocking. Errors, with fact "file":
  // AlreadyExists TARGET_INVALID for what is there already, and where another process writes to the
  // same target; ResourceExhausted where the file system has not that much room; those of the
  // system, such as for a folder above that is not there.
  static absl::StatusOr<Target> Create(const std::string& path, Kind kind, uint64_t bytes);

  // Removes what was written, unless it was committed.
  ~Target();
  Target(Target&& other) noexcept;
  Target& operator=(Target&&) = delete;

  // Where to write a file that is called `name` in the target (a file: its own name).
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }

  // Once all files are finished: waits until storage has the names, too. Afterwards the target is
  // there. Once.
  absl::Status Commit();

 private:
  Target(std::string path, Kind kind, std::string folder)
      : path_(std::move(path)), kind_(kind), folder_(std::move(folder)) {}
  absl::Status Lock();

  std::string path_;
  Kind kind_;
  std::string folder_;  // beside the target
  UniqueFd lock_;       // of that folder
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_TARGET_H_

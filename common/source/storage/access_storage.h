// Files as one caller may have them read: those that clients have passed, and by path what lies in
// the allowed roots and the caller could read itself.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_ACCESS_STORAGE_H_
#define CKPTD_COMMON_SOURCE_STORAGE_ACCESS_STORAGE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/source/access.h"
#include "common/source/storage/posix.h"
#include "common/source/storage/process_memory.h"

namespace ckptd {

// Every check is made on an open descriptor, which is then read: no other file can take its name
// in between. Errors beside PosixStorage's: PermissionDenied SOURCE_OUTSIDE_ROOTS for what lies, or
// is linked, elsewhere; PermissionDenied SOURCE_FORBIDDEN for what a guest could not read, or not
// as far as can be told. Memory that a process offers lies in no folder: the roots do not concern
// it, and a guest's is passed.
class AccessStorage final : public PosixStorage {
 public:
  explicit AccessStorage(SourceAccess access) : access_(std::move(access)) {}

  absl::Status List(const std::string& folder,
                    absl::FunctionRef<bool(std::string_view name)> visit) const override;
  absl::StatusOr<Found> Stat(const std::string& path) const override;
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(
      const std::string& path) const override;

 private:
  PassedFiles::Descriptor Passed(const std::string& path) const;
  // Whether this process's own rights count, and nothing else.
  bool Unlimited() const { return !access_.guest.has_value() && roots().empty(); }
  const std::vector<std::string>& roots() const;
  bool IsOffer(const std::string& path) const;
  // Opens with O_PATH what passes all checks.
  absl::StatusOr<UniqueFd> Reach(const std::string& path) const;
  absl::StatusOr<UniqueFd> ReachInRoots(const std::string& path) const;

  const SourceAccess access_;
  const ProcessMemoryStorage processes_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_ACCESS_STORAGE_H_

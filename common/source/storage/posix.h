// Files of this host, by whatever file system.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_POSIX_H_
#define CKPTD_COMMON_SOURCE_STORAGE_POSIX_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "common/source/storage.h"

namespace ckptd {

// Links are followed. Objects are regular files, and have all abilities that their file system
// gives them.
class PosixStorage : public Storage {
 public:
  absl::Status List(const std::string& folder,
                    absl::FunctionRef<bool(std::string_view name)> visit) const override;
  absl::StatusOr<Found> Stat(const std::string& path) const override;
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(
      const std::string& path) const override;
  std::string_view WhatChanged(const SourceFile& was, const SourceFile& is) const override;
  std::chrono::nanoseconds UnsettledFor(const SourceFile& object,
                                        std::chrono::system_clock::time_point now) const override;

  // The error of a system call on a path, with advice.
  static absl::Status Error(const std::string& path, int error);

 protected:
  // The error for what is no regular file, by its mode.
  static absl::Status NotRegular(const std::string& path, mode_t mode);
  // A regular file, open, and who it is.
  struct OpenFile {
    UniqueFd fd;
    SourceFile identity;
  };
  static absl::StatusOr<OpenFile> OpenRegular(const std::string& path);
  // A file that is open for reading, if it is a regular one; it is called `path`.
  static absl::StatusOr<OpenFile> AsRegular(const std::string& path, UniqueFd fd);
  // The file that is open with O_PATH, now for reading.
  static absl::StatusOr<OpenFile> OpenAgain(const std::string& path, int fd);
  // As List, of the folder `folder` that can be opened at `at`.
  static absl::Status ListAt(const std::string& at, const std::string& folder,
                             absl::FunctionRef<bool(std::string_view name)> visit);
  static absl::StatusOr<Found> StatOpen(const std::string& path, int fd);
  static std::shared_ptr<const ReadableObject> MakeObject(OpenFile file);
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_POSIX_H_

#include "client/cli/manifest_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "client/cli/context.h"
#include "common/base/escape.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/export/target.h"
#include "common/source/manifest.h"

namespace ckptd::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMostNames = 16;
constexpr mode_t kMode = 0666;  // the kernel applies the umask

absl::Status Refused(const std::string& target, std::string_view why) {
  return UsageError(fmt::format("writing a manifest to {}: {}; name a file of its own, as in "
                                "--write-manifest model.manifest.json, or - for stdout",
                                target, why));
}

std::string_view KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "no regular file";
}

bool IsOf(const CheckpointIndex& index, const fs::path& target) {
  std::error_code ignored;
  return std::any_of(index.files.begin(), index.files.end(), [&](const SourceFile& file) {
    return fs::equivalent(file.path, target, ignored);
  });
}

// Whether a loader looks for parts of this checkpoint in `folder`: the folder that was named, or
// one in which its files were opened.
bool IsFolderOf(const CheckpointIndex& index, const fs::path& folder) {
  std::error_code ignored;
  if (fs::equivalent(folder, index.path(), ignored)) return true;
  return std::any_of(index.files.begin(), index.files.end(), [&](const SourceFile& file) {
    return fs::equivalent(folder, fs::path(file.path).parent_path(), ignored);
  });
}

// With such a name, a manifest in a checkpoint's folder would be taken for a part of it.
bool NamesAPart(std::string_view name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
}

fs::path FolderAt(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Creates an empty file with a random name, so that nobody else can have created it. The name
// starts with a dot, so that other programs ignore the file.
absl::StatusOr<UniqueFd> CreateBeside(const fs::path& path, std::string& name) {
  int error = EEXIST;
  for (int i = 0; i < kMostNames && error == EEXIST; ++i) {
    uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) {
      return ErrnoStatus(errno, "naming a file next to " + path.string());
    }
    name = (FolderAt(path) / fmt::format(".ckptd-manifest-{:016x}", random)).string();
    UniqueFd fd(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
    if (fd.valid()) return fd;
    error = errno;
  }
  return ErrnoStatus(error, "writing " + path.string());
}

absl::Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, "writing " + path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Some file systems report only at the close that the disk is full.
absl::Status Close(UniqueFd fd, const std::string& path) {
  return ::close(fd.Release()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "writing " + path);
}

}  // namespace

bool IsStdout(const std::string& target) {
  return target == "-" || target == "/dev/stdout" || target == "/dev/fd/1" ||
         target == "/proc/self/fd/1";
}

absl::StatusOr<std::string> ManifestPath(const CheckpointIndex& index, const std::string& target) {
  struct stat found = {};
  std::error_code error;
  fs::path path = target;
  if (::stat(target.c_str(), &found) == 0) {
    if (IsOf(index, target)) {
      return Refused(target, "it is one of the files that the manifest is of");
    }
    if (!S_ISREG(found.st_mode)) {
      return Refused(target, fmt::format("it is {}", KindOf(found.st_mode)));
    }
    path = fs::canonical(target, error);
    if (error) return ErrnoStatus(error.value(), "writing " + target);
  } else if (fs::is_symlink(fs::symlink_status(target, error))) {
    return Refused(target, "it is a link that leads nowhere");
  }
  for (const fs::path& name : {path, fs::path(target)}) {
    if (NamesAPart(name.filename().string()) && IsFolderOf(index, FolderAt(name))) {
      return Refused(target, "under that name it would be taken for a part of the checkpoint");
    }
  }
  return path.string();
}

absl::Status CheckFileNames(const CheckpointIndex& index) {
  for (const SourceFile& file : index.files) {
    const std::string name = NameInManifest(index, file);
    if (ValidUtf8Prefix(name) == name.size()) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("writing a manifest of {}: the name of its file {} is not UTF-8, "
                                 "which JSON cannot hold; rename the file",
                                 Escape(index.source), Escape(name)),
                     {{"file", Escape(file.path)}});
  }
  return absl::OkStatus();
}

absl::Status WriteWhole(const std::string& path, const std::string& text) {
  CKPTD_RETURN_IF_ERROR(CheckFolderAbove(path));
  std::string beside;
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, CreateBeside(path, beside));
  absl::Status status = WriteAll(fd.get(), text, path);
  if (status.ok()) status = Close(std::move(fd), path);
  if (status.ok() && ::rename(beside.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "writing " + path);
  }
  if (!status.ok()) ::unlink(beside.c_str());
  return status;
}

}  // namespace ckptd::cli

#include "common/source/storage/posix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

// How long two writes may have the same time. Kernels stamp files by their tick, 10 ms at the
// most; some file systems by whole seconds, or two.
constexpr std::chrono::nanoseconds kTick = std::chrono::milliseconds(20);
constexpr std::chrono::nanoseconds kCoarseTick = std::chrono::milliseconds(2'100);
constexpr std::chrono::nanoseconds kWholeSecond = std::chrono::seconds(1);

absl::Status Invalid(const std::string& path, std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("reading {}: {}", path, why), {{"file", path}});
}

int64_t Nanoseconds(const struct timespec& time) {
  constexpr int64_t kNanosPerSecond = 1'000'000'000;
  return time.tv_sec * kNanosPerSecond + time.tv_nsec;
}

SourceFile IdentityOf(const std::string& path, const struct stat& info) {
  SourceFile file;
  file.path = path;
  file.bytes = static_cast<uint64_t>(info.st_size);
  file.object = std::to_string(info.st_ino);
  // The change time of the inode. A writer that sets mtime back moves it; so do chmod, rename and
  // link.
  file.version = std::to_string(Nanoseconds(info.st_ctim));
  file.host = std::to_string(info.st_dev);  // each host counts its devices
  file.mtime_ns = Nanoseconds(info.st_mtim);
  return file;
}

absl::StatusOr<struct stat> StatOf(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return PosixStorage::Error(path, errno);
  return info;
}

class PosixObject final : public ReadableObject {
 public:
  PosixObject(UniqueFd fd, SourceFile identity)
      : ReadableObject(std::move(identity)), fd_(std::move(fd)) {}

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    return PreadFull(fd_.get(), offset, out, path());
  }
  int fd() const override { return fd_.get(); }
  Mapping Map() const override {
    if (size() == 0) return {};
    void* const address = ::mmap(nullptr, size(), PROT_READ, MAP_SHARED, fd_.get(), 0);
    return address == MAP_FAILED ? Mapping() : Mapping(address, size());
  }
  // tmpfs refuses to read without waiting, though it never would.
  bool in_memory() const override {
    struct statfs info = {};
    return ::fstatfs(fd_.get(), &info) == 0 && info.f_type == TMPFS_MAGIC;
  }

 private:
  const UniqueFd fd_;
};

}  // namespace

absl::Status PosixStorage::NotRegular(const std::string& path, mode_t mode) {
  std::string_view kind = "a device";
  if (S_ISDIR(mode)) kind = "a directory";
  if (S_ISFIFO(mode)) kind = "a pipe (FIFO)";
  if (S_ISSOCK(mode)) kind = "a socket";
  return Invalid(path, fmt::format("it is {}, not a regular file; name a file of weights, an "
                                   "index.json or a folder that holds them",
                                   kind));
}

absl::Status PosixStorage::Error(const std::string& path, int error) {
  if (error == ENAMETOOLONG || error == ELOOP || error == EINVAL) {
    return Invalid(path.substr(0, 4096), error == ELOOP
                                             ? "its links lead in a circle; name the file itself"
                                             : "no path can be like that; check it");
  }
  std::error_code ignored;
  const auto link = fs::read_symlink(path, ignored);
  if (error == ENOENT && !ignored) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     fmt::format("reading {}: it is a link to {}, which does not exist here; "
                                 "download or mount that too",
                                 path, link.string()),
                     {{"file", path}});
  }
  std::string_view advice = "";
  if (error == ENOENT || error == ENOTDIR) {
    advice = "; check the path (a daemon sees its own mounts and working directory)";
    if (path.find_first_of("*?[") != std::string::npos) {
      advice = "; patterns are not expanded: name the folder that holds the files, or one of them";
    } else if (path.find('$') != std::string::npos) {
      advice = "; a variable that is not set where the path is named stays in it as it is";
    }
  } else if (error == EACCES || error == EPERM) {
    advice = "; let that user enter the folders above";
  }
  const absl::Status status = ErrnoStatus(error, "reading " + path);
  return MakeError(status.code(), ReasonOf(status), MessageOf(status) + std::string(advice),
                   {{"file", path}});
}

absl::Status PosixStorage::List(const std::string& folder,
                                absl::FunctionRef<bool(std::string_view name)> visit) const {
  return ListAt(folder, folder, visit);
}

absl::Status PosixStorage::ListAt(const std::string& at, const std::string& folder,
                                  absl::FunctionRef<bool(std::string_view name)> visit) {
  std::error_code error;
  fs::directory_iterator entry(at, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!visit(entry->path().filename().string())) return absl::OkStatus();
  }
  if (!error) return absl::OkStatus();
  return WithFact(ErrnoStatus(error.value(), "listing folder " + folder), "file", folder);
}

absl::StatusOr<Storage::Found> PosixStorage::Stat(const std::string& path) const {
  CKPTD_ASSIGN_OR_RETURN(const struct stat info, StatOf(path));
  return Found{IdentityOf(path, info), S_ISDIR(info.st_mode)};
}

absl::StatusOr<PosixStorage::OpenFile> PosixStorage::OpenRegular(const std::string& path) {
  // Asked before: opening a device can act on it.
  CKPTD_ASSIGN_OR_RETURN(const struct stat named, StatOf(path));
  if (!S_ISREG(named.st_mode)) return NotRegular(path, named.st_mode);
  absl::StatusOr<UniqueFd> fd = OpenForReading(path);
  if (!fd.ok()) return WithFact(fd.status(), "file", path);
  return AsRegular(path, *std::move(fd));
}

absl::StatusOr<PosixStorage::OpenFile> PosixStorage::AsRegular(const std::string& path,
                                                               UniqueFd fd) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return Error(path, errno);
  if (!S_ISREG(info.st_mode)) return NotRegular(path, info.st_mode);
  return OpenFile{std::move(fd), IdentityOf(path, info)};
}

absl::StatusOr<PosixStorage::OpenFile> PosixStorage::OpenAgain(const std::string& path, int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return Error(path, errno);
  if (!S_ISREG(info.st_mode)) return NotRegular(path, info.st_mode);
  const std::string same = fmt::format("/proc/self/fd/{}", fd);
  UniqueFd opened(::open(same.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.valid()) return Error(path, errno);
  return AsRegular(path, std::move(opened));
}

absl::StatusOr<Storage::Found> PosixStorage::StatOpen(const std::string& path, int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return Error(path, errno);
  return Found{IdentityOf(path, info), S_ISDIR(info.st_mode)};
}

std::shared_ptr<const ReadableObject> PosixStorage::MakeObject(OpenFile file) {
  return std::make_shared<const PosixObject>(std::move(file.fd), std::move(file.identity));
}

absl::StatusOr<std::shared_ptr<const ReadableObject>> PosixStorage::Open(
    const std::string& path) const {
  CKPTD_ASSIGN_OR_RETURN(OpenFile file, OpenRegular(path));
  return MakeObject(std::move(file));
}

std::string_view PosixStorage::WhatChanged(const SourceFile& was, const SourceFile& is) const {
  if (!IsSameObject(was, is)) return "it was replaced by another file";
  if (was.bytes != is.bytes) return "its size changed";
  if (was.mtime_ns != is.mtime_ns) return "it was written to";
  if (was.version != is.version) {
    return "it was written to and its time set back, or its name, links, owner or mode changed";
  }
  return {};
}

std::chrono::nanoseconds PosixStorage::UnsettledFor(
    const SourceFile& object, std::chrono::system_clock::time_point now) const {
  const std::chrono::nanoseconds time = now.time_since_epoch();
  const int64_t ctime_ns = std::strtoll(object.version.c_str(), nullptr, 10);
  const auto tick = ctime_ns % kWholeSecond.count() == 0 ? kCoarseTick : kTick;
  std::chrono::nanoseconds longest(0);
  for (const int64_t stamp : {object.mtime_ns, ctime_ns}) {
    const std::chrono::nanoseconds written(stamp);
    // One of the future was set, or is of another clock, which nobody can wait for.
    if (written <= time) longest = std::max(longest, written + tick - time);
  }
  return longest;
}

}  // namespace ckptd

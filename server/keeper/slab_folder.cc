#include "server/keeper/slab_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/keeper/keeper_wire.h"

namespace ckptd {
namespace {

// By the name of the entry, the indexes of its files.
using Files = std::map<std::string, std::set<uint32_t>>;

// The entry and the index that a file's name tells; nothing for other files.
std::optional<std::pair<std::string, uint32_t>> Parse(const std::string& file) {
  const size_t mark = file.rfind('#');
  uint32_t index = 0;
  if (mark == std::string::npos || !absl::SimpleAtoi(file.substr(mark + 1), &index)) return std::nullopt;
  return std::pair(absl::StrReplaceAll(file.substr(0, mark), {{"~", "/"}}), index);
}

// Files 0 to n, none of which is missing.
bool IsWhole(const std::set<uint32_t>& files) { return *files.rbegin() + 1 == files.size(); }

absl::StatusOr<std::vector<std::string>> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename());
  }
  if (error) return ErrnoStatus(error.value(), "reading the slab folder " + folder);
  return names;
}

absl::Status Failed(const std::string& doing, const std::string& path) {
  return ErrnoStatus(errno, doing + " " + path);
}

std::string OpenPath(const UniqueFd& fd) { return fmt::format("/proc/self/fd/{}", fd.get()); }

// The file is the same, under one more name.
absl::Status Link(const UniqueFd& fd, const std::string& path) {
  if (::linkat(AT_FDCWD, OpenPath(fd).c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    return absl::OkStatus();
  }
  return Failed("keeping memory as", path);
}

absl::Status CheckMemory(const std::vector<UniqueFd>& fds, const std::string& folder) {
  struct stat home = {};
  if (::stat(folder.c_str(), &home) != 0) return Failed("looking at", folder);
  for (size_t i = 1; i < fds.size(); ++i) {
    struct stat info = {};
    if (::fstat(fds[i].get(), &info) == 0 && info.st_dev == home.st_dev && info.st_nlink > 0) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     "its memory does not lie in the slab folder");
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Lock(const std::string& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Failed("opening the slab folder", folder);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return Failed("locking the slab folder", folder);
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("using the slab folder {}: another daemon has its memory there; stop "
                               "that one, or choose another --job or --slab-dir",
                               folder));
}

// A file of its own: a link may lead to memory that another name gives away or cuts. O_NONBLOCK,
// because opening a FIFO must not wait for a writer.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return Failed("opening", path);
  if (S_ISREG(info.st_mode)) return fd;
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                   fmt::format("opening {}: it is no regular file", path));
}

// Sealed memory has lost its write permission, which says nothing to root. A client of our user may
// have taken the read permission as well.
absl::StatusOr<UniqueFd> OpenMemory(const std::string& path) {
  absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  if (absl::IsPermissionDenied(fd.status()) &&
      ::fchmodat(AT_FDCWD, path.c_str(), S_IRUSR, AT_SYMLINK_NOFOLLOW) == 0) {
    fd = OpenFile(path, O_RDONLY);
  }
  CKPTD_RETURN_IF_ERROR(fd.status());
  struct stat info = {};
  if (::fstat(fd->get(), &info) != 0) return Failed("opening", path);
  return (info.st_mode & S_IWUSR) == 0 ? std::move(fd) : OpenFile(path, O_RDWR);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlabFolder>> SlabFolder::Open(std::string folder) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd lock, Lock(folder));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder));
  Files files;
  for (const std::string& file : names) {
    if (const auto parsed = Parse(file)) {
      files[parsed->first].insert(parsed->second);
    } else {
      ::unlink((folder + "/" + file).c_str());
    }
  }
  std::unique_ptr<SlabFolder> store(new SlabFolder(std::move(folder), std::move(lock)));
  for (const auto& [name, indexes] : files) {
    if (!IsWhole(indexes)) store->RemoveNow(name);
  }
  return store;
}

std::string SlabFolder::PathOf(const std::string& name, size_t index) const {
  return fmt::format("{}/{}#{}", folder_, absl::StrReplaceAll(name, {{"/", "~"}}), index);
}

absl::StatusOr<StoredEntries> SlabFolder::Entries() {
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder_));
  Files files;
  for (const std::string& file : names) {
    if (const auto parsed = Parse(file)) files[parsed->first].insert(parsed->second);
  }
  StoredEntries entries;
  for (const auto& [name, indexes] : files) {
    if (!IsWhole(indexes)) continue;
    absl::StatusOr<std::vector<UniqueFd>> fds = OpenEntry(name, indexes.size());
    if (fds.ok()) {
      entries[name] = *std::move(fds);
    } else {
      Log(LogLevel::kWarn, "{}: its files in {} are of no use: {}", name, folder_, MessageOf(fds.status()));
      RemoveNow(name);
    }
  }
  return entries;
}

absl::StatusOr<std::vector<UniqueFd>> SlabFolder::OpenEntry(const std::string& name, size_t files) const {
  std::vector<UniqueFd> fds;
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(PathOf(name, 0), O_RDONLY));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd record, CopyRecord(file.get()));
  fds.push_back(std::move(record));
  for (size_t i = 1; i < files; ++i) {
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenMemory(PathOf(name, i)));
    fds.push_back(std::move(fd));
  }
  return fds;
}

void SlabFolder::Put(const std::string& name, std::vector<UniqueFd> fds) {
  struct stat info = {};
  const bool connection = ::fstat(fds.back().get(), &info) == 0 && S_ISSOCK(info.st_mode);
  if (connection) return;  // its client ends with the processes that this store outlives
  MutexLock lock(mutex_);
  const absl::Status put = PutNow(name, fds);
  if (put.ok()) return;
  Log(LogLevel::kWarn, "{}: not kept in {}: {}", name, folder_, MessageOf(put));
  RemoveNow(name);
}

absl::Status SlabFolder::PutNow(const std::string& name, const std::vector<UniqueFd>& fds) const {
  CKPTD_RETURN_IF_ERROR(CheckMemory(fds, folder_));
  RemoveNow(name);
  for (size_t i = 1; i < fds.size(); ++i) CKPTD_RETURN_IF_ERROR(Link(fds[i], PathOf(name, i)));
  // The record comes last, and all of it at once.
  const UniqueFd record(::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0400));
  if (!record.valid()) return Failed("making a record in", folder_);
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, RecordBytes(fds[0].get()));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(record.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno != EINTR) return Failed("writing a record in", folder_);
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  return Link(record, PathOf(name, 0));
}

void SlabFolder::Remove(const std::string& name) {
  MutexLock lock(mutex_);
  RemoveNow(name);
}

void SlabFolder::RemoveNow(const std::string& name) const {
  // The record goes first, so that the rest does not count from then on.
  ::unlink(PathOf(name, 0).c_str());
  for (const std::string& file : FilesIn(folder_).value_or(std::vector<std::string>())) {
    const auto parsed = Parse(file);
    if (parsed.has_value() && parsed->first == name) ::unlink((folder_ + "/" + file).c_str());
  }
}

absl::StatusOr<StoredEntries> TwoStores::Entries() {
  CKPTD_ASSIGN_OR_RETURN(StoredEntries entries, first_->Entries());
  CKPTD_ASSIGN_OR_RETURN(StoredEntries more, second_->Entries());
  entries.merge(more);
  return entries;
}

void TwoStores::Put(const std::string& name, std::vector<UniqueFd> fds) {
  std::vector<UniqueFd> copies;
  for (const UniqueFd& fd : fds) {
    auto copy = DuplicateFd(fd.get(), "duplicating a kept descriptor");
    if (copy.ok()) copies.push_back(*std::move(copy));
  }
  if (copies.size() == fds.size()) {
    second_->Put(name, std::move(copies));
  } else {
    Log(LogLevel::kWarn, "{}: not kept in {}: no descriptors are left", name, second_->endpoint());
  }
  first_->Put(name, std::move(fds));
}

void TwoStores::Remove(const std::string& name) {
  second_->Remove(name);
  first_->Remove(name);
}

std::string TwoStores::endpoint() const {
  return fmt::format("{}, {}", first_->endpoint(), second_->endpoint());
}

}  // namespace ckptd

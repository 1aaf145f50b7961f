#include "server/memory/host/memory_claims.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "fmt/format.h"

namespace ckptd {
namespace {

// A claim locks the first bytes of a slot, as many bytes as it claims.
constexpr int64_t kSlotBytes = int64_t{1} << 50;
constexpr int64_t kSlots = 512;  // a host's daemons have two or three claims each at most
// The byte after the slots is a mutex: who looks at the claims or adds one locks it.
constexpr int64_t kMutexByte = kSlots * kSlotBytes;
// For tidying up, which another process can do as well.
constexpr auto kTidyPatience = std::chrono::milliseconds(100);
constexpr auto kPollInterval = std::chrono::milliseconds(1);
constexpr size_t kMostHolderBytes = 120;

struct flock Range(short type, int64_t from, int64_t bytes) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = from;
  range.l_len = bytes;
  return range;
}

// Locks of the open file description, not of the process, so that threads exclude each other.
int SetLock(const UniqueFd& file, short type, int64_t from, int64_t bytes) {
  struct flock range = Range(type, from, bytes);
  return ::fcntl(file.get(), F_OFD_SETLK, &range) == 0 ? 0 : errno;
}

bool IsTaken(int error) { return error == EAGAIN || error == EACCES; }

// 0, or the error. EAGAIN if the byte was locked by others all the time.
int LockMutexByte(const UniqueFd& file, std::chrono::nanoseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const int error = SetLock(file, F_WRLCK, kMutexByte, 1);
    if (!IsTaken(error) && error != EINTR) return error;
    if (std::chrono::steady_clock::now() >= deadline) return EAGAIN;
    std::this_thread::sleep_for(kPollInterval);
  }
}

// Bytes of the slots that other open file descriptions have locked.
uint64_t ClaimedByOthers(const UniqueFd& file) {
  struct flock any = Range(F_WRLCK, 0, kMutexByte);
  if (::fcntl(file.get(), F_OFD_GETLK, &any) != 0 || any.l_type == F_UNLCK) return 0;
  uint64_t sum = 0;
  for (int64_t slot = 0; slot < kMutexByte; slot += kSlotBytes) {
    struct flock range = Range(F_WRLCK, slot, kSlotBytes);
    if (::fcntl(file.get(), F_OFD_GETLK, &range) != 0 || range.l_type == F_UNLCK) continue;
    sum += static_cast<uint64_t>(range.l_len > 0 ? std::min(range.l_len, kSlotBytes) : kSlotBytes);
  }
  return sum;
}

bool IsAt(const UniqueFd& file, const std::string& path) {
  struct stat held = {};
  struct stat there = {};
  return ::fstat(file.get(), &held) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

UniqueFd OpenFile(const std::string& path, int flags) {
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
}

// The file holds who has the mutex byte locked. Needs it to be locked. Without room for the text
// others do not learn who it is.
void WriteHolder(const UniqueFd& file, const std::string& holder) {
  const std::string text = holder.substr(0, kMostHolderBytes);
  const ssize_t written = ::pwrite(file.get(), text.data(), text.size(), 0);
  [[maybe_unused]] const int cut = ::ftruncate(file.get(), std::max<ssize_t>(written, 0));
}

std::string HolderOf(const UniqueFd& file) {
  char text[kMostHolderBytes];
  const ssize_t bytes = ::pread(file.get(), text, sizeof(text), 0);
  return bytes > 0 ? Escape({text, static_cast<size_t>(bytes)}) : "another daemon";
}

// Opens the file and locks its mutex byte. Invalid if the file or its locks are not available.
absl::StatusOr<UniqueFd> OpenAndLock(const std::string& path, const std::string& holder,
                                     std::chrono::nanoseconds patience) {
  while (!path.empty()) {
    UniqueFd file = OpenFile(path, O_CREAT);
    if (!file.valid()) break;
    const int error = LockMutexByte(file, patience);
    if (IsTaken(error)) {
      return MakeError(
          absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
          fmt::format("claiming host memory: {} has had {} locked for {} s; see whether a daemon of "
                      "this host has stalled",
                      HolderOf(file), path, std::chrono::duration<double>(patience).count()),
          {{"file", path}});
    }
    if (error != 0) break;
    // The process that had the lock may have removed the file meanwhile.
    if (!IsAt(file, path)) continue;
    WriteHolder(file, holder);
    return file;
  }
  return UniqueFd();
}

// Needs the mutex byte to be locked.
void RemoveUnused(const UniqueFd& file, const std::string& path) {
  WriteHolder(file, "");
  if (ClaimedByOthers(file) == 0 && IsAt(file, path)) ::unlink(path.c_str());
}

}  // namespace

MemoryClaim& MemoryClaim::operator=(MemoryClaim&& other) noexcept {
  if (this != &other) {
    End();
    file_ = std::move(other.file_);
    path_ = std::move(other.path_);
    slot_ = other.slot_;
  }
  return *this;
}

bool MemoryClaim::LockSlot(uint64_t bytes) {
  const auto length = static_cast<int64_t>(std::min(bytes, uint64_t{kSlotBytes}));
  if (!file_.valid() || length == 0) return true;
  for (slot_ = 0; slot_ < kMutexByte; slot_ += kSlotBytes) {
    if (SetLock(file_, F_WRLCK, slot_, length) == 0) return true;
  }
  return false;
}

void MemoryClaim::Lower(uint64_t bytes) {
  if (!file_.valid() || bytes >= static_cast<uint64_t>(kSlotBytes)) return;
  const auto kept = static_cast<int64_t>(bytes);
  SetLock(file_, F_UNLCK, slot_ + kept, kSlotBytes - kept);
}

void MemoryClaim::End() {
  if (!file_.valid()) return;
  Lower(0);
  if (LockMutexByte(file_, kTidyPatience) == 0) RemoveUnused(file_, path_);
  file_.Reset();
}

MemoryClaims::MemoryClaims(std::string path, std::string holder, Available available,
                           std::chrono::nanoseconds patience)
    : path_(std::move(path)),
      holder_(std::move(holder)),
      available_(std::move(available)),
      patience_(patience) {}

MemoryClaims::~MemoryClaims() {
  if (path_.empty()) return;
  const UniqueFd file = OpenFile(path_, 0);
  if (file.valid() && LockMutexByte(file, kTidyPatience) == 0) RemoveUnused(file, path_);
}

absl::StatusOr<MemoryClaims::Answer> MemoryClaims::Claim(uint64_t bytes, uint64_t spare) const {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd file, OpenAndLock(path_, holder_, patience_));
  MemoryClaim claim(std::move(file), path_);
  Answer answer;
  // Claims are read before the available memory. A claim that ends in between is still counted,
  // or its memory is no longer available.
  if (claim.file_.valid()) answer.claimed = ClaimedByOthers(claim.file_);
  CKPTD_ASSIGN_OR_RETURN(answer.available, available_());
  const uint64_t left = answer.available - std::min(answer.available, answer.claimed);
  if (left < bytes || left - bytes < spare || !claim.LockSlot(bytes)) return answer;
  if (claim.file_.valid()) {
    WriteHolder(claim.file_, "");
    SetLock(claim.file_, F_UNLCK, kMutexByte, 1);
  }
  answer.claim = std::move(claim);
  return answer;
}

}  // namespace ckptd

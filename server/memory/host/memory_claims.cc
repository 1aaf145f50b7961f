#include "server/memory/host/memory_claims.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <thread>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "fmt/format.h"

namespace ckptd {
namespace {

// A claim locks the first bytes of a slot, as many bytes as it claims.
constexpr int64_t kSlotBytes = int64_t{1} << 50;
constexpr int64_t kSlots = 512;  // a host's daemons have two or three claims each at most
// How often the groups that this process is in may change while it claims.
constexpr int kMostLooks = 3;
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

// Needs the machine's mutex byte to be locked.
void RemoveUnused(const UniqueFd& file, const std::string& path) {
  if (file.valid() && ClaimedByOthers(file) == 0 && IsAt(file, path)) ::unlink(path.c_str());
}

// The file of a level. The machine's has no name added to it.
std::string PathOf(const std::string& path, const std::string& level) {
  return level == kMachineLevel ? path : path + "." + level;
}

uint64_t LeftOf(const MemoryClaims::Answer& answer) {
  return answer.available - std::min(answer.available, answer.claimed);
}

// Whether `a` is the worse of two levels for a claim of `need` bytes. One that never has them comes
// before one that others have claimed.
bool Decides(const MemoryClaims::Answer& a, const MemoryClaims::Answer& b, uint64_t need) {
  const auto rank = [need](const MemoryClaims::Answer& answer) {
    return std::pair(answer.available >= need, LeftOf(answer));
  };
  return rank(a) < rank(b);
}

}  // namespace

MemoryClaim& MemoryClaim::operator=(MemoryClaim&& other) noexcept {
  if (this != &other) {
    End();
    parts_ = std::move(other.parts_);
  }
  return *this;
}

bool MemoryClaim::LockSlots(uint64_t bytes) {
  const auto length = static_cast<int64_t>(std::min(bytes, uint64_t{kSlotBytes}));
  for (Part& part : parts_) {
    if (!part.file.valid() || length == 0) continue;
    for (part.slot = 0; part.slot < kMutexByte; part.slot += kSlotBytes) {
      if (SetLock(part.file, F_WRLCK, part.slot, length) == 0) break;
    }
    if (part.slot == kMutexByte) return false;
  }
  return true;
}

void MemoryClaim::Lower(uint64_t bytes) {
  if (bytes >= static_cast<uint64_t>(kSlotBytes)) return;
  const auto kept = static_cast<int64_t>(bytes);
  for (const Part& part : parts_) {
    if (part.file.valid()) SetLock(part.file, F_UNLCK, part.slot + kept, kSlotBytes - kept);
  }
}

void MemoryClaim::End() {
  if (parts_.empty() || !parts_.front().file.valid()) return;
  Lower(0);
  const Part& machine = parts_.front();
  if (LockMutexByte(machine.file, kTidyPatience) == 0 && IsAt(machine.file, machine.path)) {
    WriteHolder(machine.file, "");
    // Its file goes last: who makes a new one does not wait for this lock.
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      RemoveUnused(part->file, part->path);
    }
  }
  parts_.clear();
}

MemoryClaims::MemoryClaims(std::string path, std::string holder, Levels levels,
                           std::chrono::nanoseconds patience)
    : path_(std::move(path)),
      holder_(std::move(holder)),
      levels_(std::move(levels)),
      patience_(patience) {}

MemoryClaims::Levels MemoryClaims::OfMachine(Available available) {
  return [available = std::move(available)]() -> absl::StatusOr<std::vector<MemoryLevel>> {
    CKPTD_ASSIGN_OR_RETURN(const uint64_t left, available());
    return std::vector<MemoryLevel>{{kMachineLevel, left, left}};
  };
}

MemoryClaims::~MemoryClaims() {
  if (path_.empty()) return;
  const UniqueFd file = OpenFile(path_, 0);
  if (!file.valid() || LockMutexByte(file, kTidyPatience) != 0) return;
  WriteHolder(file, "");
  RemoveUnused(file, path_);
}

std::vector<uint64_t> MemoryClaim::ClaimedBesides() const {
  std::vector<uint64_t> claimed;
  for (const Part& part : parts_) {
    claimed.push_back(part.file.valid() ? ClaimedByOthers(part.file) : 0);
  }
  return claimed;
}

bool MemoryClaims::HasOpen(const MemoryClaim& claim, const std::vector<MemoryLevel>& levels) const {
  return std::ranges::equal(claim.parts_, levels, [this](const auto& part, const auto& level) {
    return part.path == PathOf(path_, level.name);
  });
}

void MemoryClaims::OpenAll(const std::vector<MemoryLevel>& levels, MemoryClaim& claim) const {
  claim.parts_.resize(1);
  for (size_t i = 1; i < levels.size(); ++i) {
    MemoryClaim::Part& part = claim.parts_.emplace_back();
    part.path = PathOf(path_, levels[i].name);
    if (claim.parts_.front().file.valid()) part.file = OpenFile(part.path, O_CREAT);
  }
}

absl::StatusOr<MemoryClaims::Answer> MemoryClaims::Look(uint64_t need, MemoryClaim& claim) const {
  std::vector<uint64_t> claimed;
  std::vector<MemoryLevel> levels;
  for (int looks = 1; looks <= kMostLooks; ++looks) {
    // Claims are read before the available memory. A claim that ends in between is still counted,
    // or its memory is no longer available.
    claimed = claim.ClaimedBesides();
    CKPTD_ASSIGN_OR_RETURN(levels, levels_());
    if (HasOpen(claim, levels)) break;
    OpenAll(levels, claim);
  }
  claimed.resize(levels.size());
  Answer worst;
  for (size_t i = 0; i < levels.size(); ++i) {
    Answer answer{levels[i].left, claimed[i], {}};
    if (i == 0 || Decides(answer, worst, need)) worst = std::move(answer);
  }
  return worst;
}

absl::StatusOr<MemoryClaims::Answer> MemoryClaims::Claim(uint64_t bytes, uint64_t spare) const {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd file, OpenAndLock(path_, holder_, patience_));
  MemoryClaim claim;
  claim.parts_.push_back({std::move(file), path_});
  const uint64_t need = CheckedAdd(bytes, spare).value_or(std::numeric_limits<uint64_t>::max());
  CKPTD_ASSIGN_OR_RETURN(Answer answer, Look(need, claim));
  if (LeftOf(answer) < need || !claim.LockSlots(bytes)) return answer;
  if (const UniqueFd& machine = claim.parts_.front().file; machine.valid()) {
    WriteHolder(machine, "");
    SetLock(machine, F_UNLCK, kMutexByte, 1);
  }
  answer.claim = std::move(claim);
  return answer;
}

}  // namespace ckptd

// What somebody waits for at storage: the calls that have begun and not returned. Storage whose
// server has gone keeps its callers in the kernel, where no deadline of ours ends them: others ask
// here what they wait for, and since when.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_WATCH_H_
#define CKPTD_COMMON_SOURCE_STORAGE_WATCH_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/mutex.h"

namespace ckptd {

// One load's or query's, which gives it along with SourceAccess. Thread-safe.
class StorageWatch {
 public:
  using Clock = std::chrono::steady_clock;

  StorageWatch(std::string source, std::string mount)
      : source_(std::move(source)), mount_(std::move(mount)) {}

  // One call, from its beginning until it has returned. The thread that makes it owns it, and
  // `path` must outlive it. A null watch: nobody asks.
  class Call {
   public:
    Call(StorageWatch* watch, std::string_view path, uint64_t offset = 0);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    friend class StorageWatch;
    StorageWatch* const watch_;
    const std::string_view path_;
    const uint64_t offset_;
    const Clock::time_point since_;
    Call* older_ = nullptr;
    Call* newer_ = nullptr;
  };

  struct Stalled {
    std::string file;
    uint64_t offset = 0;
    Clock::duration time{0};
  };
  // The call that has lasted longest, if that is `patience` or more.
  std::optional<Stalled> Oldest(Clock::duration patience) const;

  const std::string& source() const { return source_; }
  const std::string& mount() const { return mount_; }  // where the source lies

  // Nobody waits for this one any more: it was told that its time is over, or others have passed
  // it. It may stand for as long as its storage does.
  void LeaveBehind() { left_behind_ = true; }
  bool left_behind() const { return left_behind_; }
  // Bytes of memory that a read may still write to.
  void Hold(uint64_t bytes) { held_bytes_ = bytes; }
  uint64_t held_bytes() const { return held_bytes_; }

 private:
  const std::string source_;
  const std::string mount_;
  std::atomic<bool> left_behind_ = false;
  std::atomic<uint64_t> held_bytes_ = 0;
  mutable Mutex mutex_;
  Call* oldest_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Call* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_WATCH_H_

// Lines that a library would log again and again. Thread-safe.
#ifndef CKPTD_SERVER_DAEMON_REPEATED_LINES_H_
#define CKPTD_SERVER_DAEMON_REPEATED_LINES_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/mutex.h"

namespace ckptd {

class RepeatedLines {
 public:
  static constexpr std::chrono::seconds kPause{10};

  // How often the line was left out before, or nothing if it is left out now: it is the last one
  // that was admitted, within the pause.
  std::optional<uint64_t> Admit(std::string_view line, std::chrono::steady_clock::time_point now) {
    const MutexLock lock(mutex_);
    const bool same = line == last_;
    if (same && now < until_) {
      ++left_out_;
      return std::nullopt;
    }
    last_ = line;
    until_ = now + kPause;
    const uint64_t before = std::exchange(left_out_, 0);
    return same ? before : 0;
  }

 private:
  Mutex mutex_;
  std::string last_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point until_ ABSL_GUARDED_BY(mutex_);
  uint64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_REPEATED_LINES_H_

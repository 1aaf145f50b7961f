// Limits how long a daemon may take to stop.
#ifndef CKPTD_SERVER_DAEMON_STOP_DEADLINE_H_
#define CKPTD_SERVER_DAEMON_STOP_DEADLINE_H_

#include <chrono>
#include <thread>

#include "common/base/mutex.h"

namespace ckptd {

// Ends the process, with an error in the log, if this object still exists after `patience`. A
// thread that reads from storage without an answer cannot be waited for. As after a kill, the
// next daemon takes over the remaining files.
class StopDeadline {
 public:
  // Less than supervisors wait before they kill.
  static constexpr std::chrono::seconds kPatience{8};

  explicit StopDeadline(std::chrono::milliseconds patience = kPatience);
  ~StopDeadline();
  StopDeadline(const StopDeadline&) = delete;
  StopDeadline& operator=(const StopDeadline&) = delete;

 private:
  void Watch(std::chrono::milliseconds patience);

  Mutex mutex_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_STOP_DEADLINE_H_

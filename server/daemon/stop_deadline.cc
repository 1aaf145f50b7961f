#include "server/daemon/stop_deadline.h"

#include <unistd.h>

#include "common/base/logging.h"
#include "server/daemon/commands.h"

namespace ckptd {

StopDeadline::StopDeadline(std::chrono::milliseconds patience)
    : thread_([this, patience] { Watch(patience); }) {}

StopDeadline::~StopDeadline() {
  {
    MutexLock lock(mutex_);
    done_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void StopDeadline::Watch(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_; };
  if (changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + patience, done)) return;
  Log(LogLevel::kError, "stopping: still at work after {:.1f} s; the process ends without waiting "
                        "for it (does the storage that is read answer?)",
      std::chrono::duration<double>(patience).count());
  ::_exit(kExitFailed);
}

}  // namespace ckptd

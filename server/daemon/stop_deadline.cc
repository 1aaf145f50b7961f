#include "server/daemon/stop_deadline.h"

#include <unistd.h>

#include "common/base/at_once.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/daemon/commands.h"

namespace ckptd {

StopDeadline::StopDeadline(std::chrono::milliseconds patience) {
  auto thread = StartThread("watching how long stopping takes", [this, patience] { Watch(patience); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  // Without a thread the kernel's alarm ends the process at that time, without a log line.
  Log(LogLevel::kWarn, "{}", MessageOf(thread.status()));
  ::alarm(static_cast<unsigned>(std::chrono::ceil<std::chrono::seconds>(patience).count()));
}

StopDeadline::~StopDeadline() {
  {
    MutexLock lock(mutex_);
    done_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    ::alarm(0);
  }
}

void StopDeadline::Watch(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_; };
  if (changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + patience, done)) return;
  Log(LogLevel::kError, "stopping: it has not finished after {:.1f} s, so the process ends now "
                        "(does the storage that is read answer?)",
      std::chrono::duration<double>(patience).count());
  ::_exit(kExitFailed);
}

}  // namespace ckptd

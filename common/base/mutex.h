// An annotated mutex over std::mutex. clang's -Wthread-safety checks it, and ThreadSanitizer
// understands it (the packaged absl::Mutex is not instrumented).
#ifndef CKPTD_COMMON_BASE_MUTEX_H_
#define CKPTD_COMMON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace ckptd {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Waits until `done()` is true, or until the deadline. Returns whether done() was true. The
  // caller must hold `mutex`, and done() is called with it.
  template <typename Done>
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    const bool result = condition_.wait_until(lock, deadline, done);
    lock.release();
    return result;
  }
  template <typename Done>
  void Wait(Mutex& mutex, Done done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    condition_.wait(lock, done);
    lock.release();
  }
  void NotifyAll() { condition_.notify_all(); }
  void NotifyOne() { condition_.notify_one(); }

 private:
  std::condition_variable condition_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_MUTEX_H_

// Lets one thread end a call that another thread waits in.
#ifndef CKPTD_CLIENT_CPP_CANCEL_H_
#define CKPTD_CLIENT_CPP_CANCEL_H_

#include <chrono>
#include <functional>
#include <utility>

#include "common/base/mutex.h"

namespace ckptd {
inline namespace client {

// Thread-safe. One call at a time can listen to it. It cannot be reset.
class CancelToken {
 public:
  // True if a call was listening and is being ended.
  bool Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (!listener_) return false;
    listener_();
    return true;
  }
  bool cancelled() {
    MutexLock lock(mutex_);
    return cancelled_;
  }

  // While it exists, Cancel() calls `listener`, under the token's lock. If the token is cancelled
  // already, the constructor calls it.
  class Listening {
   public:
    Listening(CancelToken* token, std::function<void()> listener) : token_(token) {
      if (token_ == nullptr) return;
      MutexLock lock(token_->mutex_);
      if (token_->cancelled_) listener();
      token_->listener_ = std::move(listener);
    }
    ~Listening() {
      if (token_ == nullptr) return;
      MutexLock lock(token_->mutex_);
      token_->listener_ = nullptr;
    }
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;

   private:
    CancelToken* const token_;
  };

 private:
  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> listener_ ABSL_GUARDED_BY(mutex_);
};

// The pauses of one call. A cancellation ends them. `cancel` may be null.
class Pauses {
 public:
  explicit Pauses(CancelToken* cancel) : listening_(cancel, [this] { Cancel(); }) {}
  // False if it was cancelled.
  bool Wait(std::chrono::milliseconds longest) {
    MutexLock lock(mutex_);
    return !changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + longest,
                               [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                 return cancelled_;
                               });
  }

 private:
  void Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  const CancelToken::Listening listening_;  // last, because its constructor may call the listener
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_CANCEL_H_

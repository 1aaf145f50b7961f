// One thread that runs tasks in order. The load worker of a daemon owns slabs
// being filled and the communicator, so all ranks issue operations in one order.
#ifndef CKPTD_SERVER_LOAD_WORKER_H_
#define CKPTD_SERVER_LOAD_WORKER_H_

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/mutex.h"

namespace ckptd {

// Thread-safe. Destruction runs what is queued, then joins.
class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Post(std::function<void()> task);

  // Posts and gives a future of the result.
  template <typename Function>
  auto Submit(Function function) -> std::future<decltype(function())> {
    auto task = std::make_shared<std::packaged_task<decltype(function())()>>(std::move(function));
    auto future = task->get_future();
    Post([task] { (*task)(); });
    return future;
  }

 private:
  void Loop();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_WORKER_H_

// Runs tasks one at a time, in order. The load worker of a daemon owns slabs being filled and the
// communicator, so all ranks issue operations in one order.
//
// A task that waits for storage steps outside meanwhile: if it stands still and others wait, they
// pass it on another thread. It goes on when its storage answers and it has got the turn again.
#ifndef CKPTD_SERVER_LOAD_WORKER_H_
#define CKPTD_SERVER_LOAD_WORKER_H_

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace ckptd {

// Thread-safe. Destruction runs what is queued, then joins.
class Worker {
 public:
  // The most tasks that others may have passed: each holds a thread, and what it has allocated.
  static constexpr int kMostPassed = 16;

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
  // Waits until nothing is queued or runs, also of the tasks that others have passed.
  void WaitUntilIdle();

  // A part of the running task that uses nothing of what tasks share. The task's thread makes and
  // ends it; parts do not nest.
  class Outside {
   public:
    // `lets_pass`: whether the next task may run, asked now and then while one waits, under a lock.
    Outside(Worker& worker, std::function<bool()> lets_pass);
    // Waits for the turn, if another task has it.
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    friend class Worker;
    Worker& worker_;
    const std::function<bool()> lets_pass_;
    bool passed_ = false;  // guarded by the worker's mutex
  };

 private:
  void Loop();
  // Waits for the next task. Empty: there will be none.
  std::function<void()> Next();
  bool CanTake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sees to a thread that waits, for tasks behind one that is outside.
  void Reinforce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndTurn();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool turn_taken_ ABSL_GUARDED_BY(mutex_) = false;
  Outside* outside_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the task that has the turn
  int passed_ ABSL_GUARDED_BY(mutex_) = 0;     // tasks that others have passed
  int returning_ ABSL_GUARDED_BY(mutex_) = 0;  // such that wait for the turn: before new ones
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;       // threads that wait
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_WORKER_H_

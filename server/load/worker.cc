#include "server/load/worker.h"

#include "common/base/heap.h"

namespace ckptd {

Worker::Worker() : thread_([this] { Loop(); }) {}

Worker::~Worker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void Worker::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.NotifyOne();
}

void Worker::Loop() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !tasks_.empty();
      });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    task = nullptr;  // with what it held, such as tables of tensors
    ReturnFreeHeap();
  }
}

}  // namespace ckptd

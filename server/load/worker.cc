#include "server/load/worker.h"

#include <chrono>

#include "common/base/at_once.h"
#include "common/base/heap.h"
#include "common/base/logging.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// How often a task that is outside is asked whether others may pass it.
constexpr std::chrono::milliseconds kAsked{100};

}  // namespace

Worker::Worker() {
  MutexLock lock(mutex_);
  threads_.emplace_back([this] { Loop(); });
}

Worker::~Worker() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  WaitUntilIdle();
  {
    MutexLock lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void Worker::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.NotifyAll();
}

void Worker::WaitUntilIdle() {
  MutexLock lock(mutex_);
  changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tasks_.empty() && !turn_taken_ && passed_ == 0;
  });
}

bool Worker::CanTake() {
  if (tasks_.empty() || returning_ > 0) return false;
  if (!turn_taken_) return true;
  if (outside_ == nullptr || passed_ == kMostPassed || !outside_->lets_pass_()) return false;
  outside_->passed_ = true;
  outside_ = nullptr;
  ++passed_;
  return true;
}

std::function<void()> Worker::Next() {
  MutexLock lock(mutex_);
  ++idle_;
  bool can_take = false;
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    can_take = CanTake();
    return can_take || (stopping_ && tasks_.empty());
  };
  while (!changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kAsked, ready)) {
    // Time alone makes a difference where somebody waits behind a task that is outside.
    changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !tasks_.empty() || stopping_;
    });
  }
  --idle_;
  if (!can_take) return nullptr;
  turn_taken_ = true;
  std::function<void()> task = std::move(tasks_.front());
  tasks_.pop_front();
  return task;
}

void Worker::EndTurn() {
  {
    MutexLock lock(mutex_);
    turn_taken_ = false;
  }
  changed_.NotifyAll();
}

void Worker::Loop() {
  while (std::function<void()> task = Next()) {
    task();
    task = nullptr;  // with what it held, such as tables of tensors
    ReturnFreeHeap();
    EndTurn();
  }
}

void Worker::Reinforce() {
  if (idle_ > 0 || stopping_) return;
  auto thread = StartThread("running tasks beside one that waits for storage", [this] { Loop(); });
  if (!thread.ok()) {
    Log(LogLevel::kWarn, "{}", MessageOf(thread.status()));
    return;
  }
  threads_.push_back(*std::move(thread));
}

Worker::Outside::Outside(Worker& worker, std::function<bool()> lets_pass)
    : worker_(worker), lets_pass_(std::move(lets_pass)) {
  MutexLock lock(worker_.mutex_);
  worker_.outside_ = this;
  worker_.Reinforce();
}

Worker::Outside::~Outside() {
  {
    MutexLock lock(worker_.mutex_);
    if (!passed_) {
      if (worker_.outside_ == this) worker_.outside_ = nullptr;
      return;
    }
    ++worker_.returning_;
    worker_.changed_.Wait(worker_.mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(worker_.mutex_) {
      return !worker_.turn_taken_;
    });
    --worker_.returning_;
    --worker_.passed_;
    worker_.turn_taken_ = true;
  }
  worker_.changed_.NotifyAll();
}

}  // namespace ckptd

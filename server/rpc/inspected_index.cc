#include "server/rpc/inspected_index.h"

#include <system_error>
#include <utility>

#include "common/base/heap.h"

namespace ckptd {

InspectedIndex::~InspectedIndex() {
  std::thread timer;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    timer = std::move(timer_);
  }
  changed_.NotifyAll();
  if (timer.joinable()) timer.join();
}

bool InspectedIndex::StartTimer() {
  if (timer_.joinable()) return true;
  try {
    timer_ = std::thread([this] { DropWhenUnused(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void InspectedIndex::Put(std::shared_ptr<const CheckpointIndex> index, std::string view) {
  {
    MutexLock lock(mutex_);
    if (!StartTimer()) return;
    index_.swap(index);  // the one before is destroyed without the lock
    view_ = std::move(view);
    used_ = std::chrono::steady_clock::now();
  }
  changed_.NotifyAll();
}

std::shared_ptr<const CheckpointIndex> InspectedIndex::Get(const std::string& source,
                                                            const std::string& view) {
  MutexLock lock(mutex_);
  if (index_ == nullptr || index_->source != source || view_ != view) return nullptr;
  used_ = std::chrono::steady_clock::now();
  return index_;
}

void InspectedIndex::Drop(const std::string& source) {
  std::shared_ptr<const CheckpointIndex> dropped;
  {
    MutexLock lock(mutex_);
    if (index_ != nullptr && index_->source == source) dropped = std::exchange(index_, nullptr);
  }
  if (dropped == nullptr) return;
  dropped = nullptr;
  ReturnFreeHeap();
}

void InspectedIndex::DropWhenUnused() {
  for (;;) {
    std::shared_ptr<const CheckpointIndex> dropped;
    {
      MutexLock lock(mutex_);
      changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || index_ != nullptr;
      });
      const auto until = used_ + std::chrono::ceil<std::chrono::steady_clock::duration>(patience_);
      changed_.WaitUntil(mutex_, until, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || index_ == nullptr;
      });
      if (stop_) return;
      if (std::chrono::steady_clock::now() < used_ + patience_) continue;  // it was used meanwhile
      dropped = std::exchange(index_, nullptr);
    }
    if (dropped == nullptr) continue;
    dropped = nullptr;
    ReturnFreeHeap();
  }
}

}  // namespace ckptd

#include "server/memory/cuda/staging_pool.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cuda/stream.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;

// Frees pinned memory when work that did not end in time has ended on all these GPUs, at least
// one. The last GPU's driver frees it.
void FreeWhenIdle(std::vector<std::shared_ptr<CudaDevice>> users, std::byte* memory) {
  const std::shared_ptr<CudaDevice> device = std::move(users.front());
  users.erase(users.begin());
  const CudaDevice::Free free = [users, memory](const CudaDriver& driver) {
    if (users.empty()) {
      driver.MemFreeHost(memory);
    } else {
      FreeWhenIdle(users, memory);
    }
  };
  // the device frees it later, because the driver would wait for that work
  if (device->DeferFree(free)) return;
  const CudaScope scope(*device);
  free(device->driver());
}

}  // namespace

absl::StatusOr<std::shared_ptr<StagingPool>> StagingPool::Create(std::shared_ptr<CudaDevice> home,
                                                                 uint64_t bytes,
                                                                 std::chrono::milliseconds patience) {
  const auto slots = static_cast<size_t>(std::max<uint64_t>(bytes / kSlotBytes, 2));
  void* memory = nullptr;
  {
    const CudaScope scope(*home);
    const absl::Status pinned = home->Check(
        home->driver().MemHostAlloc(&memory, slots * kSlotBytes, CU_MEMHOSTALLOC_PORTABLE),
        fmt::format("pinning {} MiB of staging memory (ulimit -l, the container's memory limit)",
                    slots * kSlotBytes >> 20));
    // No eviction on the GPU can make room for it.
    if (!pinned.ok()) return WithFact(pinned, "host_bytes", std::to_string(slots * kSlotBytes));
  }
  return std::shared_ptr<StagingPool>(
      new StagingPool(std::move(home), static_cast<std::byte*>(memory), slots, patience));
}

StagingPool::StagingPool(std::shared_ptr<CudaDevice> home, std::byte* memory, size_t slots,
                         std::chrono::milliseconds patience)
    : home_(std::move(home)), memory_(memory), patience_(patience), slots_(slots) {
  for (size_t i = 0; i < slots; ++i) {
    slots_[i].bytes_ = {memory + i * kSlotBytes, kSlotBytes};
    free_.push_back(&slots_[i]);
  }
}

StagingPool::~StagingPool() {
  // sorted, so that all pools use the same order
  std::map<CUdevice, std::shared_ptr<CudaDevice>> peers;
  for (const Slot& slot : slots_) {
    for (const auto& [device, event] : slot.events_) {
      const CudaScope scope(*device);
      device->driver().EventDestroy(event);
      if (device->info().ordinal != home_->info().ordinal) peers[device->info().ordinal] = device;
    }
  }
  std::vector<std::shared_ptr<CudaDevice>> users;
  for (auto& [ordinal, device] : peers) users.push_back(std::move(device));
  users.push_back(home_);
  FreeWhenIdle(std::move(users), memory_);
}

bool StagingPool::Ended(Slot& slot) {
  while (!slot.recorded_.empty()) {
    const std::shared_ptr<CudaDevice> device = slot.recorded_.back();
    const CudaScope scope(*device);
    const CUresult result = device->driver().EventQuery(slot.events_.at(device));
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result != CUDA_SUCCESS && error_.ok()) error_ = device->Check(result, "copying");
    slot.recorded_.pop_back();
  }
  return true;
}

void StagingPool::Collect() {
  while (!in_flight_.empty() && Ended(*in_flight_.front())) {
    free_.push_back(in_flight_.front());
    in_flight_.pop_front();
  }
}

StagingPool::Slot* StagingPool::TakeFree(const void* user) {
  Collect();
  if (free_.empty()) return nullptr;
  auto found = std::find_if(free_.rbegin(), free_.rend(),
                            [user](const Slot* slot) { return slot->user_ == user; });
  if (found == free_.rend()) found = free_.rbegin();
  Slot* const slot = *found;
  free_.erase(std::prev(found.base()));
  slot->user_ = user;
  return slot;
}

absl::Status StagingPool::Stalled() {
  MutexLock lock(mutex_);
  if (!in_flight_.empty() && !in_flight_.front()->recorded_.empty()) {
    return DeviceStalled(*in_flight_.front()->recorded_.back(), patience_);
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("taking staging memory: threads that read storage have held all "
                               "{} slots for {:.1f} s; look at the storage, or start the daemon "
                               "with more --staging or fewer --reader-threads",
                               slots_.size(), std::chrono::duration<double>(patience_).count()));
}

absl::StatusOr<StagingPool::Slot*> StagingPool::Take(const void* user) {
  const Clock::time_point deadline = Clock::now() + patience_;
  while (true) {
    {
      MutexLock lock(mutex_);
      Slot* const slot = TakeFree(user);
      if (!error_.ok()) {
        if (slot != nullptr) free_.push_back(slot);
        return error_;
      }
      if (slot != nullptr) return slot;
    }
    if (Clock::now() > deadline) return Stalled();
    std::this_thread::sleep_for(kCudaPoll);
  }
}

bool StagingPool::Broken() {
  MutexLock lock(mutex_);
  return !error_.ok();
}

absl::Status StagingPool::Record(Slot& slot, const std::shared_ptr<CudaDevice>& device,
                                 CUstream stream) {
  absl::Status status;
  {
    const CudaScope scope(*device);
    CUevent& event = slot.events_[device];
    if (event == nullptr) {
      status = device->Check(device->driver().EventCreate(&event, CU_EVENT_DISABLE_TIMING),
                             "making an event");
    }
    if (status.ok()) {
      status = device->Check(device->driver().EventRecord(event, stream), "recording an event");
    }
  }
  if (status.ok()) {
    slot.recorded_.push_back(device);
    return status;
  }
  MutexLock lock(mutex_);
  if (error_.ok()) error_ = status;
  return status;
}

void StagingPool::Give(Slot* slot) {
  MutexLock lock(mutex_);
  if (slot->recorded_.empty()) {
    free_.push_back(slot);
  } else {
    in_flight_.push_back(slot);
  }
}

}  // namespace ckptd

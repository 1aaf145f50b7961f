// Work of a GPU that does not end in time, on the fake driver.
#ifndef CKPTD_TESTS_TESTING_STUCK_WORK_H_
#define CKPTD_TESTS_TESTING_STUCK_WORK_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "common/cuda/device.h"
#include "tests/fakes/cuda/external.h"

namespace ckptd {

// Something in a stream that writes `bytes` at an address until End.
class StuckWork {
 public:
  StuckWork(const CudaDevice& device, CUstream stream, CUdeviceptr address, uint64_t bytes) {
    const CudaScope scope(device);
    const cuFakeRange range = {address, bytes, true};
    const auto enqueue = reinterpret_cast<decltype(&cuFakeEnqueue)>(Find("cuFakeEnqueue"));
    EXPECT_EQ(enqueue(stream, &range, bytes > 0 ? 1 : 0, &Start, this), CUDA_SUCCESS);
    // Asking makes late streams begin it.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (ticket_ == nullptr && std::chrono::steady_clock::now() < deadline) {
      EXPECT_EQ(device.driver().StreamQuery(stream), CUDA_ERROR_NOT_READY);
    }
    EXPECT_NE(ticket_.load(), nullptr);
  }
  ~StuckWork() { End(); }
  StuckWork(const StuckWork&) = delete;
  StuckWork& operator=(const StuckWork&) = delete;

  void End() {
    void* const ticket = ticket_.exchange(nullptr);
    if (ticket == nullptr) return;
    reinterpret_cast<decltype(&cuFakeFinish)>(Find("cuFakeFinish"))(ticket, CUDA_SUCCESS);
  }

 private:
  static void* Find(const char* name) {
    void* const fake = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    EXPECT_NE(fake, nullptr);
    return ::dlsym(fake, name);
  }
  static void Start(void* data, void* ticket) { static_cast<StuckWork*>(data)->ticket_ = ticket; }

  std::atomic<void*> ticket_ = nullptr;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_STUCK_WORK_H_

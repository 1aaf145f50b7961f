// A stream of one device, with waits that have deadlines.
#ifndef CKPTD_COMMON_CUDA_STREAM_H_
#define CKPTD_COMMON_CUDA_STREAM_H_

#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/device.h"

namespace ckptd {

// Owns the stream and keeps its device. Not thread-safe. The destructor does not wait: queued
// work still runs, and the device is Busy until it has ended.
class CudaStream {
 public:
  static absl::StatusOr<CudaStream> Make(std::shared_ptr<CudaDevice> device);
  ~CudaStream();
  CudaStream(CudaStream&& other) noexcept
      : device_(std::move(other.device_)), stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&&) = delete;

  CUstream get() const { return stream_; }
  // Returns when all queued work has ended. Errors: DEVICE_FAILED, DeadlineExceeded DEADLINE
  // after `patience`.
  absl::Status Wait(std::chrono::nanoseconds patience) const;

 private:
  CudaStream(std::shared_ptr<CudaDevice> device, CUstream stream)
      : device_(std::move(device)), stream_(stream) {}

  std::shared_ptr<CudaDevice> device_;
  CUstream stream_;
};

// How often waits poll. Far below the time for a copy of some MiB.
inline constexpr std::chrono::microseconds kCudaPoll{20};
// DeadlineExceeded DEADLINE: the GPU has made no progress for `patience`.
absl::Status DeviceStalled(const CudaDevice& device, std::chrono::nanoseconds patience);

}  // namespace ckptd

#endif  // CKPTD_COMMON_CUDA_STREAM_H_

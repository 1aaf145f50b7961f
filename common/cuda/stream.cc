#include "common/cuda/stream.h"

#include <fmt/format.h>

#include <thread>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

absl::Status DeviceStalled(const CudaDevice& device, std::chrono::nanoseconds patience) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("copying on {}: nothing has ended for {:.1f} s; look at the GPU "
                               "(nvidia-smi, dmesg for Xid) and try again",
                               device.info().uuid,
                               std::chrono::duration<double>(patience).count()),
                   {{"device", device.info().uuid}});
}

absl::StatusOr<CudaStream> CudaStream::Make(std::shared_ptr<CudaDevice> device) {
  CUstream stream = nullptr;
  const CudaScope scope(*device);
  CKPTD_RETURN_IF_ERROR(device->Check(
      device->driver().StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream"));
  return CudaStream(std::move(device), stream);
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) device_->Retire(stream_);
}

absl::Status CudaStream::Wait(std::chrono::nanoseconds patience) const {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const CudaScope scope(*device_);
  while (true) {
    const CUresult result = device_->driver().StreamQuery(stream_);
    if (result != CUDA_ERROR_NOT_READY) return device_->Check(result, "copying");
    if (std::chrono::steady_clock::now() > deadline) return DeviceStalled(*device_, patience);
    std::this_thread::sleep_for(kCudaPoll);
  }
}

}  // namespace ckptd

// One GPU, or one MIG slice, as this process uses it.
#ifndef CKPTD_COMMON_CUDA_DEVICE_H_
#define CKPTD_COMMON_CUDA_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace ckptd {

struct GpuInfo {
  // "GPU-" and hex digits 8-4-4-4-12, as nvidia-smi writes it; "MIG-..." for a slice. The only
  // name that processes exchange, because ordinals differ between containers.
  std::string uuid;
  std::string name;      // for people
  CUdevice ordinal = 0;  // in this process
  uint64_t total_bytes = 0;
  // Why memory of this GPU has no descriptors that other processes can import. Empty: it has.
  std::string no_descriptors;
  // Whether network cards can access mapped memory (GPUDirect RDMA).
  bool rdma = false;
};

// The GPUs that CUDA_VISIBLE_DEVICES makes visible, by ordinal. Errors: NO_DEVICE, DEVICE_FAILED.
absl::StatusOr<std::vector<GpuInfo>> ListGpus(const CudaDriver& driver);
// The GPU with that UUID. A MIG UUID equals the GPU form with the same digits. Errors:
// FailedPrecondition NO_DEVICE names the visible ones.
absl::StatusOr<GpuInfo> FindGpu(const CudaDriver& driver, std::string_view uuid);

// OK, or the first error that made CUDA unusable in this process, DEVICE_FAILED. After some
// errors (an illegal address, an uncorrectable ECC error) the driver returns the same error for
// every call until the process ends. From then on the driver is not called any more.
absl::Status CudaFailure();

// Holds the GPU's primary context, which other users of CUDA in this process share. Work that has
// not ended in time prolongs that. Thread-safe.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Errors: DEVICE_FAILED, also CudaFailure's.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Open(const CudaDriver& driver, GpuInfo info);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // After a CudaFailure, a driver that refuses every call.
  const CudaDriver& driver() const { return failed_ ? CudaDriver::Refusing() : driver_; }
  const GpuInfo& info() const { return info_; }
  CUcontext context() const { return context_; }
  // As CudaStatus, with the GPU's name and the fact "device".
  absl::Status Check(CUresult result, std::string_view doing) const;
  // Bytes that no process has allocated.
  absl::StatusOr<uint64_t> FreeBytes() const;

  // --- work that has not ended in time ---
  // Such work may still write, and freeing the memory that it uses faults or blocks forever. So
  // its stream is given to the device (Retire), and memory is freed only when the work has ended.
  // While there is such work, a thread waits for its end.

  // Destroys the stream, at once or when its work has ended.
  void Retire(CUstream stream);
  // Whether such work may still run on this GPU in this process, or may begin (CudaClaim).
  bool Busy();
  // If Busy, runs `free` when the work has ended, with the context current, and returns true. The
  // caller must then free nothing. `free` must not own this device. If not Busy, returns false.
  using Free = std::function<void(const CudaDriver&)>;
  bool DeferFree(Free free);
  // Runs the deferred frees, unless Busy.
  void FreeDeferred();

 private:
  friend class CudaClaim;
  struct Unfinished;  // of one GPU, for the life of the process
  CudaDevice(const CudaDriver& driver, GpuInfo info, CUcontext context);
  static Unfinished& UnfinishedOf(CUdevice ordinal);
  void AwaitUnfinished();
  // Needs the mutex of `unfinished_`.
  bool CheckBusy();

  static std::atomic<bool> failed_;  // of this process

  const CudaDriver& driver_;
  const GpuInfo info_;
  const CUcontext context_;
  Unfinished& unfinished_;
};

// Makes the device Busy while it exists, because other code may put work into its streams at any
// time. Until then no stream is destroyed and no memory is freed.
class CudaClaim {
 public:
  explicit CudaClaim(std::shared_ptr<CudaDevice> device);
  ~CudaClaim();
  CudaClaim(const CudaClaim&) = delete;
  CudaClaim& operator=(const CudaClaim&) = delete;

 private:
  const std::shared_ptr<CudaDevice> device_;
};

// Makes the device's context current on this thread while it exists. Restores the previous one.
class CudaScope {
 public:
  explicit CudaScope(const CudaDevice& device) : device_(device) {
    entered_ = device.driver().CtxPushCurrent(device.context()) == CUDA_SUCCESS;
  }
  ~CudaScope() {
    CUcontext ours = nullptr;
    if (entered_) device_.driver().CtxPopCurrent(&ours);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  const CudaDevice& device_;
  bool entered_ = false;  // if false, the calls made in it return errors
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_CUDA_DEVICE_H_

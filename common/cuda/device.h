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
  // "GPU-8-4-4-4-12" hex digits, as nvidia-smi writes it; "MIG-..." for a slice. The
  // only name that crosses a process border: ordinals differ between containers.
  std::string uuid;
  std::string name;  // for people
  CUdevice ordinal = 0;  // in this process
  uint64_t total_bytes = 0;
  // Why memory of this GPU has no descriptors that other processes import; empty: it has.
  std::string no_descriptors;
  // Whether a network card can be given a way into mapped memory (GPUDirect RDMA).
  bool rdma = false;
};

// What CUDA_VISIBLE_DEVICES leaves visible, by ordinal. Errors: NO_DEVICE, DEVICE_FAILED.
absl::StatusOr<std::vector<GpuInfo>> ListGpus(const CudaDriver& driver);
// FailedPrecondition NO_DEVICE names those that are visible. A MIG UUID and the GPU
// form of the same digits are the same.
absl::StatusOr<GpuInfo> FindGpu(const CudaDriver& driver, std::string_view uuid);

// After some errors (an illegal address, an uncorrectable ECC error) the driver gives a
// process the same answer to every call: it must end to use CUDA again. From the first of
// them on nothing is asked of the driver any more. OK, or that first error, DEVICE_FAILED.
absl::Status CudaFailure();

// Holds the GPU's primary context, which the process's other users of CUDA share, for as long as
// work that was given up goes on. Thread-safe.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Errors: DEVICE_FAILED, also CudaFailure's.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Open(const CudaDriver& driver, GpuInfo info);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Refuses everything after a CudaFailure.
  const CudaDriver& driver() const { return failed_ ? CudaDriver::Refusing() : driver_; }
  const GpuInfo& info() const { return info_; }
  CUcontext context() const { return context_; }
  // As CudaStatus; says which GPU, and carries the fact "device".
  absl::Status Check(CUresult result, std::string_view doing) const;
  // Bytes that nobody has allocated, in any process.
  absl::StatusOr<uint64_t> FreeBytes() const;

  // --- work that has not ended in time ---
  // Such work may still write, and freeing what it reaches faults or blocks for good. So who
  // gives it up leaves the stream here, and what would be freed is kept until the work has ended:
  // a thread that is there only meanwhile waits for that.

  // Destroys the stream, at once or once its work has ended.
  void Retire(CUstream stream);
  // Whether such work may still run, or begin (CudaClaim), on this GPU and in this process.
  bool Busy();
  // Whether it may; then `free`, which must not own this device, runs once it has ended, with the
  // context current, and the caller frees nothing.
  using Free = std::function<void(const CudaDriver&)>;
  bool Keep(Free free);
  // Frees what was kept, now that nothing is Busy; else nothing.
  void FreeKept();

 private:
  friend class CudaClaim;
  struct Unfinished;  // of one GPU, for the life of the process
  CudaDevice(const CudaDriver& driver, GpuInfo info, CUcontext context);
  static Unfinished& UnfinishedOf(CUdevice ordinal);
  void AwaitUnfinished();
  // With the mutex of `unfinished_`.
  bool AsksBusy();

  static std::atomic<bool> failed_;  // of this process

  const CudaDriver& driver_;
  const GpuInfo info_;
  const CUcontext context_;
  Unfinished& unfinished_;
};

// While it lives the device is Busy: somebody else may put work into its streams at any time. So
// none of them, and nothing that is freed meanwhile, goes before.
class CudaClaim {
 public:
  explicit CudaClaim(std::shared_ptr<CudaDevice> device);
  ~CudaClaim();
  CudaClaim(const CudaClaim&) = delete;
  CudaClaim& operator=(const CudaClaim&) = delete;

 private:
  const std::shared_ptr<CudaDevice> device_;
};

// Makes the device's context current on this thread while it lives; what was current
// before is so again afterwards.
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
  bool entered_ = false;  // if not, the calls made in it say so
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_CUDA_DEVICE_H_

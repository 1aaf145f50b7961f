// What this process needs to move bytes to and from GPUs: contexts, staging memory, kernels.
// While it exists it takes memory on the GPUs and on the host. Exported memory lives without it.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_ENGINE_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/cuda/device.h"
#include "server/memory/cuda/kernels.h"
#include "server/memory/cuda/staging_pool.h"

namespace ckptd {

struct CudaGpu {
  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<const CudaKernels> kernels;  // null: the GPU has no kernels
};

// Thread-safe. Shared by the slabs, lanes and views that use it.
class CudaEngine {
 public:
  struct Options {
    uint64_t staging_bytes = uint64_t{128} << 20;  // pinned host memory, for all GPUs together
    // Code of the copy kernels; must live as long as the engine. Empty: the processor does their
    // work.
    std::span<const std::byte> kernels = {};
  };
  // `home`: the GPU of this daemon. Errors: DEVICE_FAILED, NO_MEMORY for the staging memory.
  static absl::StatusOr<std::shared_ptr<CudaEngine>> Start(std::shared_ptr<CudaDevice> home,
                                                           const Options& options);

  const CudaGpu& home() const { return home_; }
  // Any GPU of this host. Errors: NO_DEVICE if this process does not see it; DeadlineExceeded
  // DEADLINE while work on it that has not ended in time still runs.
  absl::StatusOr<CudaGpu> GpuOf(const std::string& uuid);
  // The pool to take slots from. If the current pool only returns errors, makes a new one. If
  // that fails, returns the current one.
  std::shared_ptr<StagingPool> Pool();
  // The current pool. Does not wait, and does not call the driver.
  std::shared_ptr<StagingPool> CurrentPool() const;

 private:
  CudaEngine(CudaGpu home, const Options& options, std::shared_ptr<StagingPool> pool)
      : home_(std::move(home)), options_(options), pool_(std::move(pool)) {}

  const CudaGpu home_;
  const Options options_;
  mutable Mutex pool_mutex_;  // held only for moments
  std::shared_ptr<StagingPool> pool_ ABSL_GUARDED_BY(pool_mutex_);
  Mutex mutex_;
  std::map<std::string, CudaGpu> peers_ ABSL_GUARDED_BY(mutex_);  // by UUID
};

// Gives a process its engine. The engine either runs all the time, or is started for its first
// user and ends with its last one. Thread-safe.
class CudaEngineSource {
 public:
  CudaEngineSource(const std::shared_ptr<CudaEngine>& first, CudaEngine::Options options,
                   bool keep);

  // Errors: those of CudaDevice::Open and CudaEngine::Start; DeadlineExceeded DEADLINE while work
  // that has not ended in time still runs.
  absl::StatusOr<std::shared_ptr<CudaEngine>> Get();
  // Null if no engine runs.
  std::shared_ptr<CudaEngine> Running() const;
  bool keeps() const { return kept_ != nullptr; }
  const GpuInfo& info() const { return info_; }
  const CudaDriver& driver() const { return driver_; }

 private:
  const CudaDriver& driver_;
  const GpuInfo info_;
  const CudaEngine::Options options_;
  const std::shared_ptr<CudaEngine> kept_;
  Mutex start_mutex_;  // held while the driver starts, which takes long
  mutable Mutex mutex_;
  std::weak_ptr<CudaEngine> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_ENGINE_H_

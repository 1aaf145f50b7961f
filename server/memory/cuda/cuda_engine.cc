#include "server/memory/cuda/cuda_engine.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Calls to the driver would wait for work that has not ended in time, without a deadline.
absl::Status CheckIdle(CudaDevice& device) {
  if (!device.Busy()) return absl::OkStatus();
  const std::string& uuid = device.info().uuid;
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("starting on {}: earlier copies have not ended, and the driver "
                               "would wait for them; look at the GPU (nvidia-smi, dmesg for Xid), "
                               "then try again, or start this daemon again",
                               uuid),
                   {{"device", uuid}});
}

// A GPU for which this ckptd has no kernels is used without kernels.
absl::StatusOr<CudaGpu> WithKernels(std::shared_ptr<CudaDevice> device,
                                    std::span<const std::byte> code) {
  CudaGpu gpu = {device, nullptr};
  absl::StatusOr<std::unique_ptr<CudaKernels>> kernels = CudaKernels::Load(std::move(device), code);
  if (kernels.ok()) {
    gpu.kernels = *std::move(kernels);
  } else if (ReasonOf(kernels.status()) != reason::kNoDevice) {
    return kernels.status();
  } else if (!code.empty()) {
    Log(LogLevel::kWarn, "{}; the processor does their work, more slowly",
        MessageOf(kernels.status()));
  }
  return gpu;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaEngine>> CudaEngine::Start(std::shared_ptr<CudaDevice> home,
                                                              const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<StagingPool> pool,
                         StagingPool::Create(home, options.staging_bytes));
  CKPTD_ASSIGN_OR_RETURN(CudaGpu gpu, WithKernels(std::move(home), options.kernels));
  return std::shared_ptr<CudaEngine>(new CudaEngine(std::move(gpu), options, std::move(pool)));
}

std::shared_ptr<StagingPool> CudaEngine::Pool() {
  std::shared_ptr<StagingPool> pool = CurrentPool();
  if (!pool->Broken() || home_.device->Busy()) return pool;
  auto fresh = StagingPool::Create(home_.device, options_.staging_bytes);
  if (!fresh.ok()) return pool;
  {
    MutexLock lock(pool_mutex_);
    // Another thread may have replaced it meanwhile.
    if (pool_ == pool) pool_ = *fresh;
  }
  Log(LogLevel::kInfo, "staging memory is allocated again after an error");
  return CurrentPool();
}

std::shared_ptr<StagingPool> CudaEngine::CurrentPool() const {
  MutexLock lock(pool_mutex_);
  return pool_;
}

absl::StatusOr<CudaGpu> CudaEngine::GpuOf(const std::string& uuid) {
  if (uuid == home_.device->info().uuid) return home_;
  MutexLock lock(mutex_);
  const auto known = peers_.find(uuid);
  if (known != peers_.end()) return known->second;
  const CudaDriver& driver = home_.device->driver();
  CKPTD_ASSIGN_OR_RETURN(GpuInfo info, FindGpu(driver, uuid));
  CKPTD_ASSIGN_OR_RETURN(auto device, CudaDevice::Open(driver, std::move(info)));
  CKPTD_RETURN_IF_ERROR(CheckIdle(*device));
  CKPTD_ASSIGN_OR_RETURN(CudaGpu gpu, WithKernels(std::move(device), options_.kernels));
  return peers_.emplace(uuid, std::move(gpu)).first->second;
}

CudaEngineSource::CudaEngineSource(const std::shared_ptr<CudaEngine>& first,
                                   CudaEngine::Options options, bool keep)
    : driver_(first->home().device->driver()),
      info_(first->home().device->info()),
      options_(options),
      kept_(keep ? first : nullptr),
      running_(first) {}

absl::StatusOr<std::shared_ptr<CudaEngine>> CudaEngineSource::Get() {
  MutexLock starting(start_mutex_);
  std::shared_ptr<CudaEngine> engine = Running();
  if (engine != nullptr) return engine;
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device, CudaDevice::Open(driver_, info_));
  CKPTD_RETURN_IF_ERROR(CheckIdle(*device));
  CKPTD_ASSIGN_OR_RETURN(engine, CudaEngine::Start(std::move(device), options_));
  MutexLock lock(mutex_);
  running_ = engine;
  return engine;
}

std::shared_ptr<CudaEngine> CudaEngineSource::Running() const {
  MutexLock lock(mutex_);
  return running_.lock();
}

}  // namespace ckptd

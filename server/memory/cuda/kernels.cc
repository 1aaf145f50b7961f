#include "server/memory/cuda/kernels.h"

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/memory/cuda/kernels/params.h"
#include "server/memory/cuda/kernels/tasks.h"

namespace ckptd {
namespace {

absl::Status NoKernels(const CudaDevice& device, std::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                   fmt::format("loading the copy kernels into {} ({}): {}", device.info().uuid,
                               device.info().name, why),
                   {{"device", device.info().uuid}});
}

// Results of drivers for code that a newer toolkit made or compressed.
bool CannotRead(CUresult result) {
  return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_INVALID_PTX ||
         result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION ||
         result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND ||
         result == CUDA_ERROR_JIT_COMPILATION_DISABLED;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaKernels>> CudaKernels::Load(std::shared_ptr<CudaDevice> device,
                                                               std::span<const std::byte> image) {
  if (image.empty()) {
    return NoKernels(*device,
                     "this ckptd was built without nvcc; build it with a CUDA toolkit, or use the "
                     "processor");
  }
  auto kernels = std::unique_ptr<CudaKernels>(new CudaKernels(std::move(device)));
  CKPTD_RETURN_IF_ERROR(kernels->LoadModule(image));
  return kernels;
}

absl::Status CudaKernels::LoadModule(std::span<const std::byte> image) {
  const CudaScope scope(*device_);
  const CUresult loaded = device_->driver().ModuleLoadData(&module_, image.data());
  if (loaded == CUDA_ERROR_NO_BINARY_FOR_GPU) {
    return NoKernels(*device_,
                     "this ckptd has none for a GPU of this kind; build it with its architecture "
                     "in CKPTD_CUDA_ARCHITECTURES");
  }
  if (CannotRead(loaded)) {
    return NoKernels(*device_,
                     fmt::format("the driver cannot read them (error {}): most likely it is older "
                                 "than the toolkit that made them, or has no compiler for PTX "
                                 "(libnvidia-ptxjitcompiler); update the driver, or build ckptd "
                                 "for this GPU with an older toolkit",
                                 static_cast<int>(loaded)));
  }
  CKPTD_RETURN_IF_ERROR(device_->Check(loaded, "loading the copy kernels"));
  CKPTD_RETURN_IF_ERROR(Find("ckptd_pack", pack_));
  CKPTD_RETURN_IF_ERROR(Find("ckptd_cast", cast_));
  return Find("ckptd_batch", batch_);
}

absl::Status CudaKernels::Find(const char* name, CUfunction& function) const {
  return device_->Check(device_->driver().ModuleGetFunction(&function, module_, name),
                        fmt::format("finding the kernel {}", name));
}

CudaKernels::~CudaKernels() {
  if (module_ == nullptr) return;
  const auto unload = [module = module_](const CudaDriver& driver) { driver.ModuleUnload(module); };
  if (device_->DeferFree(unload)) return;
  const CudaScope scope(*device_);
  unload(device_->driver());
}

absl::Status CudaKernels::Run(const kernels::CopyTask& task, CUstream stream) const {
  const uint64_t tiles = kernels::TilesOf(task);
  if (tiles > kernels::kMaxTiles) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "copying in GPU memory: this is more than one launch can do; use smaller "
                     "blocks");
  }
  kernels::TaskParams params = {task};
  return Launch(task.way < kernels::kFirstCast ? pack_ : cast_, static_cast<uint32_t>(tiles),
                &params, stream);
}

absl::Status CudaKernels::RunTable(const CudaTaskTable& table, CUstream stream) const {
  if (table.address % kernels::kTableAlignment != 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("copying in GPU memory: the table of copies must begin at a "
                                 "multiple of {} bytes",
                                 kernels::kTableAlignment));
  }
  kernels::BatchParams params = {kernels::TableAt(table.address, table.tasks)};
  return Launch(batch_, table.tiles, &params, stream);
}

absl::Status CudaKernels::Launch(CUfunction function, uint32_t tiles, void* params,
                                 CUstream stream) const {
  if (tiles == 0) return absl::OkStatus();
  void* arguments[] = {params};
  const CudaScope scope(*device_);
  return device_->Check(device_->driver().LaunchKernel(function, tiles, 1, 1, kernels::kThreads, 1,
                                                       1, 0, stream, arguments, nullptr),
                        "starting a copy kernel");
}

}  // namespace ckptd

// Kernels that copy slices of a block to their places in slabs on a GPU: strided, cast, or both.
// kernels/tasks.h turns the copies of a plan into tasks.
//
//   std::vector<kernels::CopyTask> tasks;
//   for (each copy) kernels::AppendTasks(block, copy, tasks);
//   tiles = kernels::WriteTable(tasks, room after the block in the pinned slot);
//   // The GPU must be able to read block and table; it can read the pinned slot. On a stream:
//   kernels->RunTable({address of the table, tasks.size(), tiles}, stream);
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/device.h"
#include "server/memory/cuda/kernels/index.h"

namespace ckptd {

// A table from kernels::WriteTable, in memory that the GPU can read. The GPU's own memory is
// fastest.
struct CudaTaskTable {
  CUdeviceptr address = 0;  // a multiple of kernels::kTableAlignment
  uint32_t tasks = 0;
  uint32_t tiles = 0;
};

// The kernels, loaded into one device. Thread-safe. Before it is destroyed, its work must have
// ended, or the stream must have been retired (CudaDevice::Retire).
class CudaKernels {
 public:
  // `image`: kernels::KernelImage(), which must stay valid. Errors: FailedPrecondition NO_DEVICE
  // if the image is empty (ckptd was built without nvcc), has no code for this GPU or cannot be
  // read by its driver; DEVICE_FAILED.
  static absl::StatusOr<std::unique_ptr<CudaKernels>> Load(std::shared_ptr<CudaDevice> device,
                                                           std::span<const std::byte> image);
  ~CudaKernels();
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Both only start the work, on a stream of this device. The table and the memory that the work
  // uses must stay valid until it has ended. An empty task is no error. Errors: DEVICE_FAILED;
  // InvalidArgument INVALID_REQUEST for more than a launch can do.
  absl::Status Run(const kernels::CopyTask& task, CUstream stream) const;
  absl::Status RunTable(const CudaTaskTable& table, CUstream stream) const;

 private:
  explicit CudaKernels(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  absl::Status LoadModule(std::span<const std::byte> image);
  absl::Status Find(const char* name, CUfunction& function) const;
  absl::Status Launch(CUfunction function, uint32_t tiles, void* params, CUstream stream) const;

  const std::shared_ptr<CudaDevice> device_;
  CUmodule module_ = nullptr;
  CUfunction pack_ = nullptr;
  CUfunction cast_ = nullptr;
  CUfunction batch_ = nullptr;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_H_

// Copies that GPUs do by themselves, out of the blocks of one pinned slot.
#ifndef CKPTD_SERVER_MEMORY_CUDA_SLOT_TASKS_H_
#define CKPTD_SERVER_MEMORY_CUDA_SLOT_TASKS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/memory/block_copy.h"
#include "server/memory/cuda/cuda_bytes.h"
#include "server/memory/cuda/kernels/tasks.h"

namespace ckptd {

// GPUs read the blocks and the tables of tasks in pinned memory, so each GPU fetches just its own
// slices, over its own link. CudaLane owns it. Not thread-safe.
class SlotTasks {
 public:
  // Bytes that Launch should find after the blocks. Tasks that do not fit are launched singly.
  static constexpr size_t kTableRoom = 128 << 10;

  // `copy` goes to the slab `memory`, whose GPU must have kernels. Errors:
  // kernels::AppendTasks's.
  absl::Status Add(const CudaBytes& memory, const kernels::SourceBlock& block, BlockCopy copy);

  // Starts each device's tasks on a stream of it. Tables of tasks go to `room`, which must not
  // change until the work has ended. Errors: those of `stream_of` and CudaKernels's.
  using StreamOf =
      absl::FunctionRef<absl::StatusOr<CUstream>(const std::shared_ptr<CudaDevice>&)>;
  absl::Status Launch(std::span<std::byte> room, StreamOf stream_of) const;
  void Clear() { tasks_.clear(); }

 private:
  struct OfDevice {
    const CudaKernels* kernels = nullptr;
    std::vector<kernels::CopyTask> tasks;
  };

  absl::Status LaunchOn(const OfDevice& of, CUstream stream, std::span<std::byte>& room) const;

  std::map<std::shared_ptr<CudaDevice>, OfDevice> tasks_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_SLOT_TASKS_H_

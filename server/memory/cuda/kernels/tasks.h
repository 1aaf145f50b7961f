// Turns the copies of a plan into tasks for the kernels. Pure: addresses are numbers here and are
// not read.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_TASKS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_TASKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/memory/block_copy.h"
#include "server/memory/cuda/kernels/index.h"

namespace ckptd::kernels {

// Source bytes [begin, begin + bytes) at `address`, in memory that the GPU can read. Kernels are
// fastest if address and begin are equal modulo 16.
struct SourceBlock {
  uint64_t address = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

// Appends tasks for the bytes that `copy` takes from `block`. The target of `copy` is an address.
// There are up to three tasks, because the ends that the widest units do not cover become tasks
// of their own. Errors: Internal COVERAGE for a copy that is malformed, exceeds its room, or
// casts an element that the block cuts.
absl::Status AppendTasks(const SourceBlock& block, const BlockCopy& copy,
                         std::vector<CopyTask>& tasks);

// Blocks of threads that a task needs. 0: nothing to do. A launch takes at most kMaxTiles, the
// limit of a grid on every GPU.
inline constexpr uint64_t kMaxTiles = 0x7fffffff;
uint64_t TilesOf(const CopyTask& task);

// The size of a table of tasks, as ckptd_batch reads it. The table may be written into the memory
// that it is copied from, such as the end of the same pinned buffer.
inline constexpr size_t kTableAlignment = 16;
size_t TableBytes(size_t tasks);
// Writes TableBytes(tasks.size()) bytes to `out`, and returns the number of tiles. Errors:
// InvalidArgument INVALID_REQUEST if `out` is too short or the tiles exceed a launch.
absl::StatusOr<uint32_t> WriteTable(std::span<const CopyTask> tasks, std::span<std::byte> out);
// The table that WriteTable wrote, at `address`, a multiple of kTableAlignment.
TaskTable TableAt(uint64_t address, uint32_t tasks);

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_TASKS_H_

// From the copies of a plan to tasks for the kernels. Pure; addresses are only counted.
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

// Source bytes [begin, begin + bytes), which lie at `address` in memory that the GPU
// reads. Kernels are fastest when address and begin are equal modulo 16.
struct SourceBlock {
  uint64_t address = 0;
  uint64_t begin = 0;
  uint64_t bytes = 0;
};

// Appends tasks for what `copy`, whose target is an address, takes from `block`: none to
// three, since what the widest units cannot take at either end becomes a task of its own.
// Errors: Internal COVERAGE, for a copy that is malformed, leaves its room, or casts an
// element that the block cuts.
absl::Status AppendTasks(const SourceBlock& block, const BlockCopy& copy,
                         std::vector<CopyTask>& tasks);

// Blocks of threads that a task needs. 0: nothing to do. A launch takes kMaxTiles, the
// limit of a grid on every GPU.
inline constexpr uint64_t kMaxTiles = 0x7fffffff;
uint64_t TilesOf(const CopyTask& task);

// Tasks as ckptd_batch reads them. The bytes may be written where they are to be copied
// from, such as behind the block in the same pinned buffer.
inline constexpr size_t kTableAlignment = 16;
size_t TableBytes(size_t tasks);
// Writes TableBytes(tasks.size()) bytes to `out`, at least that long; returns the number
// of tiles. Errors: InvalidArgument INVALID_REQUEST, for too little room or more tiles
// than a launch takes.
absl::StatusOr<uint32_t> WriteTable(std::span<const CopyTask> tasks, std::span<std::byte> out);
// The table that WriteTable wrote, at `address`, a multiple of kTableAlignment.
TaskTable TableAt(uint64_t address, uint32_t tasks);

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_TASKS_H_

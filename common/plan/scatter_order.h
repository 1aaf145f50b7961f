// The order in which a group's bytes travel where a communicator carries them. No rank
// tells another what comes next: all of them find the same steps in the index. Pure.
#ifndef CKPTD_COMMON_PLAN_SCATTER_ORDER_H_
#define CKPTD_COMMON_PLAN_SCATTER_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/plan/tensor_kind.h"
#include "common/source/index.h"

namespace ckptd {

// How far a step reaches.
struct ScatterSize {
  // Bytes of the files per step, except where an element or a strided piece would be cut. Values
  // below 16 mean 16.
  uint64_t step_bytes = uint64_t{32} << 20;
  // The most tensors of one step: for a thousand ranks, the lists of what each receives of many
  // small tensors would take more memory than their bytes.
  size_t step_tensors = 4096;
  bool operator==(const ScatterSize&) const = default;
};

// For a group of so many ranks: what they all receive in one step is planned at once, and
// takes about a kilobyte for each rank and tensor.
ScatterSize ScatterSizeFor(size_t world_size);

// Source bytes [begin, end) of one file. Steps are in file order, share no byte, and cut
// no element of any tensor. Those of one window are about equally long.
struct ScatterStep {
  size_t window = 0;  // number of the window whose tensors have these bytes
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const ScatterStep&) const = default;
};

struct ScatterOrder {
  // Where the tensors of each window begin, ascending. A window is a run of tensors that
  // shares no byte with others.
  std::vector<FilePlace> windows;
  // Every byte of every tensor is in one step. Windows without bytes have none.
  std::vector<ScatterStep> steps;
  // Digest of both: equal orders have equal digests on every machine.
  uint64_t digest = 0;
};

ScatterOrder OrderScatter(const CheckpointIndex& index, const ScatterSize& size);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_SCATTER_ORDER_H_

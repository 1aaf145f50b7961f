// Parameters of the kernels (one struct by value each), and what a block of each kernel does.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_PARAMS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_PARAMS_H_

#include "server/memory/cuda/kernels/copy_ways.h"

namespace ckptd::kernels {

// For ckptd_pack (uncast) and ckptd_cast.
struct TaskParams {
  CopyTask task;
};

// For ckptd_batch (any way). The GPU must be able to read the table.
struct BatchParams {
  TaskTable table;
};

// Shared by the threads of a block.
struct BlockWork {
  Tile tile;
  uint32_t task;  // index in the table
};

// Each kernel begins with one thread, which finds the block's work, and continues with all of
// them. A way that the kernel does not know copies nothing.
struct Pack {
  using Params = TaskParams;
  CKPTD_HOST_DEVICE static void Begin(const Params& params, uint32_t block, BlockWork& work) {
    StartTile(params.task, ShapeOf(params.task.way), block, work.tile);
  }
  CKPTD_HOST_DEVICE static void Run(const Params& params, const BlockWork& work, uint32_t thread) {
    Place places[kMaxPerThread] = {};
    FindPlaces(params.task, work.tile, thread, places);
    VisitVerbatim(params.task.way, CopyUnits{places, thread, work.tile.units});
  }
};

struct Cast {
  using Params = TaskParams;
  CKPTD_HOST_DEVICE static void Begin(const Params& params, uint32_t block, BlockWork& work) {
    StartTile(params.task, ShapeOf(params.task.way), block, work.tile);
  }
  CKPTD_HOST_DEVICE static void Run(const Params& params, const BlockWork& work, uint32_t thread) {
    Place places[kMaxPerThread] = {};
    FindPlaces(params.task, work.tile, thread, places);
    VisitCast(params.task.way, CopyUnits{places, thread, work.tile.units});
  }
};

struct Batch {
  using Params = BatchParams;
  CKPTD_HOST_DEVICE static void Begin(const Params& params, uint32_t block, BlockWork& work) {
    const TaskTable& table = params.table;
    work.task = TaskOfTile(table, block);
    const CopyTask& task = table.tasks[work.task];
    StartTile(task, ShapeOf(task.way), block - table.first_tile[work.task], work.tile);
  }
  CKPTD_HOST_DEVICE static void Run(const Params& params, const BlockWork& work, uint32_t thread) {
    const CopyTask& task = params.table.tasks[work.task];
    Place places[kMaxPerThread] = {};
    FindPlaces(task, work.tile, thread, places);
    VisitWay(task.way, CopyUnits{places, thread, work.tile.units});
  }
};

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_PARAMS_H_

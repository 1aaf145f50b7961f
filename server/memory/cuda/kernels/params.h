// Parameters of the kernels, one struct by value each, and what a block of each does.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_PARAMS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_PARAMS_H_

#include "server/memory/cuda/kernels/copy_ways.h"

namespace ckptd::kernels {

// Of ckptd_pack (verbatim ways) and ckptd_cast (casts).
struct TaskParams {
  CopyTask task;
};

// Of ckptd_batch (any way). The table lies in memory that the GPU reads.
struct BatchParams {
  TaskTable table;
};

// What the threads of a block share.
struct BlockWork {
  Tile tile;
  uint32_t task;  // in the table
};

// Each kernel begins with one thread, which says what the block does, and goes on with
// all of them. A way that the kernel does not know copies nothing.
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

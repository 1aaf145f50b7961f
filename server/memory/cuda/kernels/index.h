// Where each part of a strided copy lies: the one index calculation, compiled by nvcc and by the
// C++ compiler. Plain values, no allocation.
//
// A copy is a row of runs. It moves in units: 1 to 16 uncast bytes, or a few elements that are
// cast. Units are numbered run after run in the order of the source, so that a range of the
// source is a range of units. Blocks of threads take tiles, ranges of equal length.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_INDEX_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_INDEX_H_

#include <cstdint>

#if defined(__CUDACC__)
#define CKPTD_HOST_DEVICE __host__ __device__
#define CKPTD_UNROLL _Pragma("unroll")
#define CKPTD_KEEP_LOOP _Pragma("unroll 1")
#else
#define CKPTD_HOST_DEVICE
#define CKPTD_UNROLL
#define CKPTD_KEEP_LOOP
#endif

namespace ckptd::kernels {

inline constexpr uint32_t kMaxDims = 8;
inline constexpr uint32_t kThreads = 256;        // per block
inline constexpr uint32_t kMaxPerThread = 8;     // units of a tile that one thread takes
inline constexpr uint32_t kWidestPerThread = 4;  // for units of 16 bytes
inline constexpr uint32_t kMaxTileUnits = kThreads * kMaxPerThread;

// Addresses wrap: unit 0 may lie before the memory of units [first, last). Strides are bytes,
// outermost first. A stride is never shorter than what it steps over.
struct CopyTask {
  uint64_t source;  // address of unit 0
  uint64_t target;
  uint64_t first;  // units [first, last) are copied
  uint64_t last;
  uint64_t run;   // units in a run, > 0
  uint32_t way;   // how a unit is copied: copy_ways.h
  uint32_t dims;  // loops around a run
  uint64_t count[kMaxDims];
  uint64_t source_stride[kMaxDims];
  uint64_t target_stride[kMaxDims];
};

// What follows from the way.
struct UnitShape {
  uint32_t source_bytes;  // of one unit
  uint32_t target_bytes;
  uint32_t per_thread;  // <= kMaxPerThread

  CKPTD_HOST_DEVICE uint32_t tile_units() const { return kThreads * per_thread; }
};

// A tile: where its first unit lies, and that unit's index in each loop.
struct Tile {
  UnitShape shape;
  uint32_t units;  // 0 past the end of the task
  uint64_t source;
  uint64_t target;
  uint64_t in_run;
  uint64_t at[kMaxDims];
};

struct Place {
  uint64_t source;
  uint64_t target;
};

// 64-bit divisions, but only once per tile.
CKPTD_HOST_DEVICE inline void StartTile(const CopyTask& task, UnitShape shape, uint64_t number,
                                        Tile& tile) {
  const uint64_t first = task.first + number * shape.tile_units();
  const uint64_t left = first < task.last ? task.last - first : 0;
  tile.shape = shape;
  tile.units = left < shape.tile_units() ? static_cast<uint32_t>(left) : shape.tile_units();
  tile.in_run = first % task.run;
  tile.source = task.source + tile.in_run * shape.source_bytes;
  tile.target = task.target + tile.in_run * shape.target_bytes;
  uint64_t rest = first / task.run;
  CKPTD_KEEP_LOOP
  for (uint32_t d = task.dims; d-- > 0;) {
    tile.at[d] = rest % task.count[d];
    rest /= task.count[d];
    tile.source += tile.at[d] * task.source_stride[d];
    tile.target += tile.at[d] * task.target_stride[d];
  }
}

// value / by, for value < by + kMaxTileUnits. Leaves the remainder in `value`. Avoids a 64-bit
// division: for a large `by` the quotient is 0 or 1.
CKPTD_HOST_DEVICE inline uint32_t DivideNear(uint64_t& value, uint64_t by) {
  if (value < by) return 0;
  if (by > kMaxTileUnits) {
    value -= by;
    return 1;
  }
  const uint32_t small = static_cast<uint32_t>(value);
  const uint32_t quotient = small / static_cast<uint32_t>(by);
  value = small - quotient * static_cast<uint32_t>(by);
  return quotient;
}

// The place of the tile's unit `k` < kMaxTileUnits, counted from the first unit with carries over
// the loops.
CKPTD_HOST_DEVICE inline Place PlaceOf(const CopyTask& task, const Tile& tile, uint32_t k) {
  uint64_t in_run = tile.in_run + k;
  uint32_t carry = DivideNear(in_run, task.run);
  // Differences may be negative. They wrap, as addresses do.
  Place place;
  place.source = tile.source + (in_run - tile.in_run) * tile.shape.source_bytes;
  place.target = tile.target + (in_run - tile.in_run) * tile.shape.target_bytes;
  CKPTD_KEEP_LOOP
  for (uint32_t d = task.dims; carry != 0 && d-- > 0;) {
    uint64_t at = tile.at[d] + carry;
    carry = DivideNear(at, task.count[d]);
    place.source += (at - tile.at[d]) * task.source_stride[d];
    place.target += (at - tile.at[d]) * task.target_stride[d];
  }
  return place;
}

// Many tasks for one launch. Tiles are numbered across all tasks: task i has those from
// first_tile[i] on.
struct TaskTable {
  const CopyTask* tasks;
  const uint32_t* first_tile;
  uint32_t count;  // > 0
};

// The task that a tile belongs to: the last one that does not begin after it.
CKPTD_HOST_DEVICE inline uint32_t TaskOfTile(const TaskTable& table, uint32_t tile) {
  uint32_t low = 0;
  uint32_t high = table.count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (table.first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_INDEX_H_

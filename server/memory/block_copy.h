// A copy from a block of source bytes to one tensor, in the form that a device can do by itself.
#ifndef CKPTD_SERVER_MEMORY_BLOCK_COPY_H_
#define CKPTD_SERVER_MEMORY_BLOCK_COPY_H_

#include <array>
#include <cstdint>

#include "common/checkpoint/dtype.h"

namespace ckptd {

// A strided copy, as Geometry (server/transfer/geometry.h): runs ascend and do not overlap on
// either side. Positions, lengths and strides are bytes; loops are outermost first.
struct BlockCopy {
  static constexpr uint32_t kMaxDims = 8;

  Dtype from = Dtype::kUnspecified;
  Dtype to = Dtype::kUnspecified;  // equal to `from`: bytes of any type, not cast
  uint64_t begin = 0;              // source position of the first byte
  uint64_t run_bytes = 0;          // of one run, in the source
  uint32_t dims = 0;
  std::array<uint64_t, kMaxDims> count = {};
  std::array<uint64_t, kMaxDims> source_stride = {};
  std::array<uint64_t, kMaxDims> target_stride = {};
  uint64_t target = 0;  // where the first byte goes: an offset in the slab, or an address
  uint64_t room = 0;    // bytes from `target` to the end of its tensor
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_BLOCK_COPY_H_

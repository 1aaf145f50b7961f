// DTensor's placements: which boxes of a tensor one coordinate of a mesh keeps. Pure; thread-safe.
#ifndef CKPTD_COMMON_SOURCE_PLACEMENTS_H_
#define CKPTD_COMMON_SOURCE_PLACEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"

namespace ckptd {

// DTensor placement of a tensor along one mesh dimension.
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard };
  Kind kind = Kind::kReplicate;
  int32_t dim = 0;            // tensor dimension; negative counts from the end
  uint32_t split_factor = 1;  // kStridedShard only
  bool operator==(const Placement&) const = default;
};

// A box of the global tensor, and the position of its first element in the local one.
struct PlacedBox {
  Box global;   // no extent is 0
  Shape local;  // offsets in the local tensor, one per dimension
  bool operator==(const PlacedBox&) const = default;
};

// The part of a tensor that a coordinate keeps.
struct CutTensor {
  struct Dim {
    uint64_t first_chunk = 0;  // length of chunk 0 of the last cut, which is FSDP2's padded size
    bool last_cut_even = true;
  };
  // Disjoint; together they are the whole local tensor. Empty if that has no elements.
  std::vector<PlacedBox> boxes;
  Shape local_shape;  // an empty shard keeps its other dimensions: (0, 3)
  std::vector<Dim> dims;
};

// The tensor dimension that a placement cuts. Negative ones count from the end. InvalidArgument
// LAYOUT_MISMATCH for one that the tensor does not have.
absl::StatusOr<size_t> CutDim(int64_t dim, const Shape& shape);

// DTensor semantics as of torch 2.13: ceil chunks, _StridedShard, the order "in memory" for
// FSDP2+TP. One placement and one coordinate for each mesh dimension; mesh sizes and split factors
// are above 0, coordinates below the sizes. Errors: CutDim's; InvalidArgument LAYOUT_MISMATCH for
// placements that scatter a tensor too much.
absl::StatusOr<CutTensor> CutByPlacements(const std::vector<Placement>& placements,
                                          const std::vector<uint32_t>& mesh_shape,
                                          const std::vector<uint32_t>& coordinates,
                                          const Shape& shape);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_PLACEMENTS_H_

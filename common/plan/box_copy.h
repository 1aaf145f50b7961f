// Intersects a piece of a file with a box that a rank needs, and turns the part that both have
// into strided copies. Pure; thread-safe.
#ifndef CKPTD_COMMON_PLAN_BOX_COPY_H_
#define CKPTD_COMMON_PLAN_BOX_COPY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/plan/plan.h"
#include "common/source/index.h"

namespace ckptd {

// What two boxes share; nullopt when nothing. Same number of dimensions, no end
// overflows.
std::optional<Box> Intersection(const Box& a, const Box& b);

// A copy that is made several times: the same bytes of the file, or some of them, go to
// several places of the slab.
struct Repeat {
  uint64_t count = 0;
  uint64_t file_stride = 0;  // bytes
  uint64_t slab_stride = 0;
};
struct BoxCopies {
  CopyOp first;
  std::vector<Repeat> repeats;  // nested loops; none where elements share no bytes
};

// The copies of `shared` (part of piece.box and of placed.global, not empty) from
// the piece into a local tensor of `local_shape`. Offsets in the slab count
// from the first byte of that tensor. Contiguous inner dimensions are merged; loops
// follow the order of the file, whichever dimension that is.
// The caller has checked that the piece holds together (WhyImpossible) and that all bytes
// of the local tensor can be counted in 64 bits. Errors: LAYOUT_MISMATCH when more than
// CopyOp::kMaxDims strides remain, or a sub-byte dtype would be cut inside a byte.
absl::StatusOr<BoxCopies> CopiesOfBox(const Box& shared, const Piece& piece,
                                      const PlacedBox& placed, const Shape& local_shape,
                                      Dtype from, Dtype to);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_BOX_COPY_H_

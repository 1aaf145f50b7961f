// From "this piece of a file holds this box" and "this box goes there" to one
// strided copy. Pure; thread-safe.
#ifndef CKPTD_COMMON_PLAN_BOX_COPY_H_
#define CKPTD_COMMON_PLAN_BOX_COPY_H_

#include <optional>

#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/layout/layout.h"
#include "common/plan/plan.h"

namespace ckptd {

// What two boxes share; nullopt when nothing. Same number of dimensions, no end
// overflows.
std::optional<Box> Intersection(const Box& a, const Box& b);

// The copy of `shared` (part of piece.box and of placed.global, not empty) from
// the piece into a local tensor of `local_shape`. Offsets in the slab count
// from the first byte of that tensor. Contiguous inner dimensions are merged.
// The caller has checked that all bytes of the piece and of the local tensor
// can be counted in 64 bits. Errors: LAYOUT_MISMATCH when more than
// CopyOp::kMaxDims strides remain, or a sub-byte dtype would be cut inside a byte.
absl::StatusOr<CopyOp> CopyOfBox(const Box& shared, const Piece& piece, const PlacedBox& placed,
                                 const Shape& local_shape, Dtype from, Dtype to);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_BOX_COPY_H_

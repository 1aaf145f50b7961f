// The arithmetic of one CopyOp: which source bytes it needs, and where each lands in the local
// tensor. Plain values, pure functions.
#ifndef CKPTD_SERVER_TRANSFER_GEOMETRY_H_
#define CKPTD_SERVER_TRANSFER_GEOMETRY_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace ckptd {

// A CopyOp with its loops folded as far as they go, so that a contiguous copy
// has dims == 0. Runs share no byte on either side, and ascend in the source. Positions are
// bytes: "source" in the file, "local" in the tensor.
struct Geometry {
  uint64_t begin = 0;  // source
  uint64_t end = 0;    // source, one past the last byte
  uint64_t local = 0;  // position of the byte at `begin`
  Dtype from = Dtype::kUnspecified;
  Dtype to = Dtype::kUnspecified;
  // Bytes of the unit that no cut may split: an element that is cast, or a number that is turned
  // round or negated. Both are 1 when bytes are copied as they are.
  uint32_t from_size = 1;
  uint32_t to_size = 1;
  uint32_t swap = 1;  // as CopyOp::swap
  Signs negate = Signs::kNone;
  uint64_t run_source = 0;
  uint64_t run_local = 0;
  uint64_t runs = 1;
  uint32_t dims = 0;
  bool dense_local = false;   // runs lie back to back in the local tensor, in their order
  bool ascends_local = true;  // runs ascend there, too
  std::array<uint64_t, CopyOp::kMaxDims> count = {};
  std::array<uint64_t, CopyOp::kMaxDims> source_stride = {};
  std::array<uint64_t, CopyOp::kMaxDims> local_stride = {};

  bool casts() const { return from != to; }
  // Whether numbers are turned round or negated.
  bool reshapes() const { return swap > 1 || negate != Signs::kNone; }
  // As CopyOp::converts.
  bool converts() const { return casts() || reshapes(); }
  uint64_t local_bytes() const { return runs * run_local; }
  uint64_t ToLocal(uint64_t source_bytes) const { return source_bytes / from_size * to_size; }
  uint64_t ToSource(uint64_t local_bytes) const { return local_bytes / to_size * from_size; }
};

// `tensor_offset` is where the tensor starts in its slab. Errors: Internal
// COVERAGE when the op is malformed: loops that overlap, descend in the file or overflow, an
// unknown cast or swap, a start before the tensor. An op without bytes has runs == 0.
absl::StatusOr<Geometry> MakeGeometry(const CopyOp& op, uint64_t tensor_offset);

// Whether both copy the same bytes to the same local places.
bool SameCopy(const Geometry& a, const Geometry& b);

// Bytes of the op's target that come from source positions below `source`.
uint64_t LocalBytesBefore(const Geometry& geometry, uint64_t source);

// Visits the runs of a geometry in source order, beginning with the first one that ends past
// `source`.
class RunCursor {
 public:
  RunCursor(const Geometry& geometry, uint64_t source);
  bool done() const { return done_; }
  uint64_t source() const { return source_; }  // position of the run's first byte
  uint64_t local() const { return local_; }
  uint64_t index() const;  // number of runs before this one
  void Next();

 private:
  const Geometry& geometry_;
  bool done_ = false;
  uint64_t source_ = 0;
  uint64_t local_ = 0;
  std::array<uint64_t, CopyOp::kMaxDims> at_ = {};
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_GEOMETRY_H_

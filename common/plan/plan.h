// The plan: a pure function of (index, layout, dtype policy). Says, per rank,
// where each tensor lies in the slab and which copies fill it. Pure: no I/O.
#ifndef CKPTD_COMMON_PLAN_PLAN_H_
#define CKPTD_COMMON_PLAN_PLAN_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/source/index.h"

namespace ckptd {

inline constexpr uint64_t kSlabAlignment = 512;

// One tensor of a shard.
struct PlannedTensor {
  std::string name;
  std::vector<std::string> aliases;
  Dtype dtype = Dtype::kUnspecified;  // in the slab
  Shape shape;                        // local
  // In the slab: a multiple of kSlabAlignment, for members of flat parameters of their
  // elements' size.
  uint64_t offset = 0;
  uint64_t bytes = 0;                 // of the local tensor
  uint64_t padded_bytes = 0;          // >= bytes; the tail is zero
};

// A flat parameter's part of a shard: its members' parts lie in it, each a tensor of one
// dimension, and between them and behind the last, zeros.
struct PlannedFlat {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;  // of all members
  uint64_t offset = 0;                // in the slab, multiple of kSlabAlignment
  uint64_t elements = 0;              // padding included
  bool operator==(const PlannedFlat&) const = default;
};

// One strided copy from a file into the slab of one rank: `count[0] x ... x
// count[dims-1]` runs of `run_bytes` contiguous bytes each. Strides are in
// bytes of the respective side, outermost dimension first. In the file they are never
// shorter than what they step over, so that runs ascend; in the slab runs share no byte, and
// come in any order (a transposed source). dims may be 0 (one contiguous run).
struct CopyOp {
  static constexpr int kMaxDims = 8;
  uint32_t file = 0;
  uint32_t tensor = 0;  // index into RankPlan::tensors
  Dtype from = Dtype::kUnspecified;
  Dtype to = Dtype::kUnspecified;
  uint64_t file_offset = 0;  // of the first byte
  uint64_t slab_offset = 0;  // of the first byte
  uint64_t run_bytes = 0;    // bytes of one run in the file (sub-byte dtypes: whole bytes)
  // Bytes of a number whose order is turned round on the way, before it is cast; 1: of none.
  uint32_t swap = 1;
  // Whose signs are turned over after that. Both parts of a complex number are a first and a second.
  Signs negate = Signs::kNone;
  uint32_t dims = 0;
  std::array<uint64_t, kMaxDims> count = {};
  std::array<uint64_t, kMaxDims> file_stride = {};
  std::array<uint64_t, kMaxDims> slab_stride = {};

  bool casts() const { return from != to; }
  // Whether the slab's bytes are others than the file's.
  bool converts() const { return casts() || ConvertedBytes() > 1; }
  // Bytes of a number, which no cut may split, where it is turned round or negated; else 1.
  uint32_t ConvertedBytes() const {
    return negate != Signs::kNone ? BitsOf(from) / 8 : swap;
  }
  uint64_t runs() const;              // product of count[0..dims)
  uint64_t source_bytes() const { return runs() * run_bytes; }
  uint64_t target_bytes() const;      // the same elements in `to`
  uint64_t file_end() const;          // one past the last source byte touched
};

// What one rank receives.
struct RankPlan {
  uint32_t rank = 0;
  uint64_t slab_bytes = 0;             // multiple of kSlabAlignment; 0 when nothing
  std::vector<PlannedTensor> tensors;  // sorted by name
  std::vector<PlannedFlat> flats;      // in the layout's order, those the rank has part in
  std::vector<CopyOp> ops;             // sorted by (file, file_offset)
  uint64_t tensor_bytes = 0;           // sum of PlannedTensor::bytes
  // XXH3-64 over everything above in a canonical order; equal plans, equal
  // digests, on every machine.
  uint64_t digest = 0;
};

// Plans one rank. Slab offsets follow the order in which tensors lie in the
// files, so reading and filling are both nearly sequential; flat parameters come
// before them, in the layout's order. Target names that
// mean the same source tensor, sharding and dtype share one PlannedTensor.
// Errors: NotFound TENSOR_NOT_FOUND, InvalidArgument LAYOUT_MISMATCH (shape,
// placement or cast that cannot be), LAYOUT_INVALID (a malformed layout),
// WRONG_RANK, Internal COVERAGE when a target element would not be written
// exactly once. Facts name the tensor. Thread-safe.
absl::StatusOr<RankPlan> PlanRank(const CheckpointIndex& index, const RankLayout& layout,
                                  const DtypePolicy& policy);

// Digest of a whole group's plan from the digests of its ranks, in rank order.
uint64_t CombineDigests(const std::vector<uint64_t>& rank_digests);

// "0123456789abcdef".
std::string HexDigest(uint64_t digest);

// Distinct bytes that the ops of all plans read, per file (overlaps counted
// once): what storage must deliver. One entry per file of the index. Exact,
// except that ops of different geometry that overlap in more than 16 million
// runs are counted from above.
std::vector<uint64_t> ReadBytesPerFile(const CheckpointIndex& index,
                                       const std::vector<RankPlan>& plans);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_PLAN_H_

// Tensors that planning tells apart only by their names and by where their bytes
// lie. A model of a hundred thousand tensors has a handful of kinds, so what a rank
// receives is worked out once per kind. Pure.
#ifndef CKPTD_COMMON_PLAN_TENSOR_KIND_H_
#define CKPTD_COMMON_PLAN_TENSOR_KIND_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/layout/resolved_target.h"
#include "common/plan/plan.h"
#include "common/source/index.h"

namespace ckptd {

// The most copies of one rank: about a gigabyte of plan. No layout that trains comes near, and one
// that scatters every tensor must not take the daemon's memory.
inline constexpr size_t kMaxCopies = 4'000'000;

// A byte of the source.
struct FilePlace {
  uint32_t file = 0;
  uint64_t offset = 0;
  auto operator<=>(const FilePlace&) const = default;
};

// Where a tensor begins in the files: the order of the slab.
FilePlace PlaceOf(const TensorEntry& source);

// Where a member lies in its flat parameter: as a kind, whichever parameter that is.
struct FlatMember {
  uint64_t begin = 0;     // element of the flat tensor
  uint64_t elements = 0;  // of the flat tensor
  bool operator==(const FlatMember&) const = default;
};

// Views into an index and a layout, which outlive it.
struct TensorKind {
  const Sharding* sharding = nullptr;  // of the flat tensor, for a member of one
  std::optional<FlatMember> flat;
  const Shape* shape = nullptr;  // global
  Dtype from = Dtype::kUnspecified;
  Dtype to = Dtype::kUnspecified;
  uint32_t swap = 1;  // as CopyOp::swap
  Signs negate = Signs::kNone;
  std::vector<const Piece*> pieces;  // of the first such tensor; disjoint, none empty
};

// What one rank receives of a tensor of some kind.
struct Part {
  Shape shape;                // local
  uint64_t bytes = 0;         // of the local tensor
  uint64_t padded_bytes = 0;  // with FSDP2's padding
  uint64_t flat_offset = 0;   // a member's: bytes from the begin of the rank's flat part
  // In these `file` is a number in TensorKind::pieces, `file_offset` counts from the
  // first byte of that piece and `slab_offset` from the first of the tensor.
  std::vector<CopyOp> copies;
};

// Checks coverage: each element of the part is copied exactly once. The rank is in
// the sharding's mesh. Errors: InvalidArgument LAYOUT_MISMATCH or LAYOUT_INVALID,
// Internal COVERAGE; they name no tensor. Thread-safe.
absl::StatusOr<Part> PartOf(const TensorKind& kind, const std::vector<Mesh>& meshes,
                            uint32_t rank);

// LAYOUT_MISMATCH.
absl::Status TooManyCopies();

// Sorts tensors by kind. Not thread-safe. Index and layout outlive it.
class KindTable {
 public:
  KindTable(const CheckpointIndex& index, const RankLayout& layout)
      : index_(index), layout_(layout) {}

  // The number of the tensor's kind; kinds are numbered as they come. Checks the
  // tensor's pieces and appends where those that hold anything begin to `places`.
  // Internal COVERAGE for pieces that overlap, or are not what the index says.
  absl::StatusOr<uint32_t> Add(const ResolvedTarget& wanted, std::vector<FilePlace>& places);

  std::vector<TensorKind> Take() && { return std::move(kinds_); }

 private:
  const CheckpointIndex& index_;
  const RankLayout& layout_;
  std::vector<TensorKind> kinds_;
  std::unordered_multimap<size_t, uint32_t> by_hash_;
  TensorKind candidate_;  // kept for its memory
  uint32_t last_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_TENSOR_KIND_H_

// Layouts: what each rank must receive. Two spellings, one meaning. The rule
// form says it for all ranks (mesh + name patterns); the rank form is one
// trainer's own statement. Both become RankLayout values. Pure: no I/O.
#ifndef CKPTD_COMMON_LAYOUT_LAYOUT_H_
#define CKPTD_COMMON_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

// n-dimensional array of global ranks, row-major. ranks.size() == product(shape).
struct Mesh {
  std::vector<uint32_t> shape;
  std::vector<std::string> dim_names;  // empty or one per dimension
  std::vector<uint32_t> ranks;
  bool operator==(const Mesh&) const = default;
};

// One way of laying a tensor out. Exactly one of: plain (no mesh, no boxes),
// placements on a mesh, explicit boxes.
struct Sharding {
  std::optional<uint32_t> mesh;        // index into the layout's meshes
  std::vector<Placement> placements;   // one per mesh dimension
  std::optional<int32_t> padded_dim;   // FSDP2: zero-pad to chunk 0 along this dim
  std::vector<Box> boxes;              // concatenated along local dimension 0
  bool operator==(const Sharding&) const = default;
};

// FSDP1's flat parameter: tensors in row-major order, one behind the other, cut over
// the ranks as one tensor of one dimension. What no member covers is zero.
struct FlatParameter {
  std::string name;       // of its part in the shard
  uint32_t sharding = 0;  // of the flat tensor; gives each rank one run of it
  uint64_t elements = 0;  // of the flat tensor, padding included
  bool operator==(const FlatParameter&) const = default;
};

// Where a member's elements lie in its flat parameter.
struct FlatPlace {
  uint32_t flat = 0;   // index into RankLayout::flats
  uint64_t begin = 0;  // element of the flat tensor
  bool operator==(const FlatPlace&) const = default;
};

// One tensor that a rank wants.
struct TargetSpec {
  std::string name;                      // FQN as in the source (or an alias there)
  uint32_t sharding = 0;                 // index into RankLayout::shardings
  Dtype dtype = Dtype::kUnspecified;     // kUnspecified keeps the file's
  std::optional<Shape> expected_shape;   // global; a difference is LAYOUT_MISMATCH
  std::vector<std::string> aliases;      // further names for the same memory
  bool optional = false;                 // left out when missing or of another shape
  // Set: `sharding` is a plain one, and the rank receives what its part of the flat
  // parameter has of this tensor, never left out.
  std::optional<FlatPlace> flat;
  bool operator==(const TargetSpec&) const = default;
};

// Everything that one rank wants. Targets sorted by name, names unique
// (aliases included). Targets never share memory; aliases do.
struct RankLayout {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::vector<Mesh> meshes;
  std::vector<Sharding> shardings;
  std::vector<FlatParameter> flats;
  std::vector<TargetSpec> targets;
  bool skip_missing = false;       // targets are left out when the source lacks them, if not all
  bool refuse_unexpected = false;  // see CheckNothingUnexpected
};

// Ranks whose layouts differ in `rank` alone, and that are in the same of the meshes
// that their targets name. `layout` is that of one of them.
struct Cohort {
  std::shared_ptr<const RankLayout> layout;
  std::vector<uint32_t> ranks;
};

// The cohorts of some layouts, one per rank; neighbours that are alike are joined.
std::vector<Cohort> JoinEqual(std::span<const std::shared_ptr<const RankLayout>> layouts);

// Cast policy for tensors whose target states no dtype.
struct DtypePolicy {
  Dtype cast_to = Dtype::kUnspecified;   // floating tensors only
  std::vector<std::string> keep_f32;     // glob patterns of FQNs
  bool operator==(const DtypePolicy&) const = default;
};

// Rule form, parsed and checked. The same value on every rank.
class LayoutRules {
 public:
  // `text` is a short spelling (fsdp:N, hsdp:RxS, replicate:N) or JSON; see
  // deploy/config/layout.example.json for every key. Errors: InvalidArgument
  // LAYOUT_INVALID naming the key and what is allowed.
  static absl::StatusOr<LayoutRules> Parse(std::string_view text);

  // More ranks than any job has; bounds what a layout text can make us allocate.
  static constexpr uint32_t kMaxWorldSize = 1u << 20;

  uint32_t world_size() const { return world_size_; }
  // For people: "fsdp:4" or "rules over mesh 2x4".
  const std::string& description() const { return description_; }

  // What `rank` receives of `index`, alias names included. Tensors without
  // dimensions cannot be sharded: a rule that shards gives them whole. Errors:
  // LAYOUT_MISMATCH (a tensor that no rule matches, when there is no default),
  // WRONG_RANK.
  absl::StatusOr<RankLayout> ForRank(const CheckpointIndex& index, uint32_t rank) const;
  // The same for many ranks, which costs about as much as for one.
  absl::StatusOr<std::vector<Cohort>> ForRanks(const CheckpointIndex& index,
                                               std::span<const uint32_t> ranks) const;

  // A name of the source, its tensor, and the rule that names it.
  struct RuledName {
    const std::string* name = nullptr;
    const TensorEntry* tensor = nullptr;
    uint32_t rule = 0;
  };

 private:
  friend class LayoutRulesParser;
  struct Rule {
    std::vector<std::string> patterns;  // glob over FQNs; the first rule that matches wins
    Sharding sharding;
    Dtype dtype = Dtype::kUnspecified;
    bool drop = false;                  // the rank does not receive these
    std::vector<uint32_t> only_ranks;   // sorted; empty means all (EP, PP)

    // Whether `rank` receives the tensors of this rule.
    bool Gives(uint32_t rank, const std::vector<Mesh>& meshes) const;
  };
  // Rule for a tensor of that name; nullptr when none matches.
  const Rule* Match(std::string_view name) const;
  // Whether each rule gives its tensors to `rank`.
  std::vector<bool> GivesTo(uint32_t rank) const;
  using RuledNames = std::vector<RuledName>;
  absl::StatusOr<RuledNames> MatchAll(const CheckpointIndex& index) const;
  RankLayout LayoutOf(const CheckpointIndex& index, const RuledNames& names,
                      const std::vector<bool>& gives, uint32_t rank) const;
  // Ranks, by the rules that give them anything, in the order in which they come.
  std::vector<std::pair<std::vector<bool>, std::vector<uint32_t>>> ByRules(
      std::span<const uint32_t> ranks) const;

  uint32_t world_size_ = 0;
  std::string description_;
  std::vector<Mesh> meshes_;
  std::vector<Rule> rules_;
};

// A box of the global tensor and where its first element lies in the local one.
struct PlacedBox {
  Box global;   // no extent is 0
  Shape local;  // offsets in the local tensor, one per dimension
  bool operator==(const PlacedBox&) const = default;
};

// Where a sharding puts a tensor on one rank.
struct LocalGeometry {
  // Disjoint, together the whole local tensor. Empty when the rank holds nothing.
  std::vector<PlacedBox> boxes;
  Shape local_shape;             // unpadded; other dimensions are kept in an empty shard: (0, 3)
  uint64_t padded_elements = 0;  // >= product(local_shape); FSDP2 padding, a tail of zeros
  bool present = true;           // false: the rank is not in the mesh, it lacks the tensor
};

// The one place where placement arithmetic lives. DTensor semantics as of torch
// 2.13 (ceil chunks, _StridedShard, "in memory" order for FSDP2+TP). Checks the
// sharding itself too, because it may come from another process. Errors:
// InvalidArgument LAYOUT_INVALID (a sharding that never makes sense) and
// LAYOUT_MISMATCH (one that does not fit this shape). Thread-safe.
absl::StatusOr<LocalGeometry> ResolveSharding(const Sharding& sharding,
                                              const std::vector<Mesh>& meshes,
                                              const Shape& global_shape, uint32_t rank);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_LAYOUT_H_

// Layouts: what each rank must receive. There are two forms. The rule form describes all ranks
// (mesh and name patterns). The rank form is one trainer's own request. Both become RankLayout
// values. Pure: no I/O.
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
#include "common/source/placements.h"

namespace ckptd {

// n-dimensional array of global ranks, row-major. ranks.size() == product(shape).
struct Mesh {
  std::vector<uint32_t> shape;
  std::vector<std::string> dim_names;  // empty or one per dimension
  std::vector<uint32_t> ranks;
  bool operator==(const Mesh&) const = default;
};

// One way to shard a tensor. Exactly one of: plain (no mesh, no boxes), placements on a mesh,
// explicit boxes.
struct Sharding {
  std::optional<uint32_t> mesh;       // index into the layout's meshes
  std::vector<Placement> placements;  // one per mesh dimension
  std::optional<int32_t> padded_dim;  // FSDP2: zero-pad to chunk 0 along this dim
  std::vector<Box> boxes;             // concatenated along local dimension 0
  bool operator==(const Sharding&) const = default;
};

// FSDP1's flat parameter: tensors in row-major order, one after the other, cut over the ranks as
// one tensor of one dimension. Elements of no member are zero.
struct FlatParameter {
  std::string name;       // of its part in the shard
  uint32_t sharding = 0;  // of the flat tensor; gives each rank one run of it
  uint64_t elements = 0;  // of the flat tensor, with padding
  bool operator==(const FlatParameter&) const = default;
};

// The position of a member in its flat parameter.
struct FlatPlace {
  uint32_t flat = 0;   // index into RankLayout::flats
  uint64_t begin = 0;  // element of the flat tensor
  bool operator==(const FlatPlace&) const = default;
};

// One tensor that a rank wants.
struct TargetSpec {
  std::string name;                     // FQN as in the source (or an alias there)
  uint32_t sharding = 0;                // index into RankLayout::shardings
  Dtype dtype = Dtype::kUnspecified;    // kUnspecified keeps the file's
  std::optional<Shape> expected_shape;  // global; a difference is LAYOUT_MISMATCH
  std::vector<std::string> aliases;     // further names for the same memory
  bool optional = false;                // left out when missing or of another shape
  // Set for a member of a flat parameter. `sharding` is then a plain one. The rank receives the
  // elements of this tensor that its part of the flat parameter has. Never left out.
  std::optional<FlatPlace> flat;
  bool operator==(const TargetSpec&) const = default;
};

// Everything that one rank wants. Targets are sorted by name. Names, including aliases, are
// unique. Targets never share memory; aliases do.
struct RankLayout {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::vector<Mesh> meshes;
  std::vector<Sharding> shardings;
  std::vector<FlatParameter> flats;
  std::vector<TargetSpec> targets;
  bool skip_missing = false;  // leaves targets out if the source lacks them, unless it lacks all
  bool refuse_unexpected = false;  // see CheckNothingUnexpected
};

// Ranks whose layouts differ only in `rank`, and that are in the same meshes of their targets.
// `layout` belongs to one of them.
struct Cohort {
  std::shared_ptr<const RankLayout> layout;
  std::vector<uint32_t> ranks;
};

// Groups the layouts, one per rank, into cohorts. Equal neighbours are joined.
std::vector<Cohort> JoinEqual(std::span<const std::shared_ptr<const RankLayout>> layouts);

// Casts tensors whose target has no dtype.
struct DtypePolicy {
  Dtype cast_to = Dtype::kUnspecified;  // floating tensors only
  std::vector<std::string> keep_f32;    // glob patterns of FQNs
  bool operator==(const DtypePolicy&) const = default;
};

// The rule form, parsed and checked. The same value on every rank. Immutable, so thread-safe.
class LayoutRules {
 public:
  // `text` is a short form (fsdp:N, hsdp:RxS, replicate:N) or JSON;
  // deploy/config/layout.example.json has every key. Errors: InvalidArgument LAYOUT_INVALID
  // naming the key and what is allowed.
  static absl::StatusOr<LayoutRules> Parse(std::string_view text);

  // More ranks than any job has. Limits how much memory a layout text can make us allocate.
  static constexpr uint32_t kMaxWorldSize = 1u << 20;

  uint32_t world_size() const { return world_size_; }
  // For people: "fsdp:4" or "rules over mesh 2x4".
  const std::string& description() const { return description_; }

  // What `rank` receives of `index`, including alias names. Tensors without dimensions cannot be
  // sharded, so a rule that shards gives them whole. Errors: LAYOUT_MISMATCH (a tensor that no
  // rule matches, without a default), WRONG_RANK.
  absl::StatusOr<RankLayout> ForRank(const CheckpointIndex& index, uint32_t rank) const;
  // The same for many ranks. It costs about as much as for one.
  absl::StatusOr<std::vector<Cohort>> ForRanks(const CheckpointIndex& index,
                                               std::span<const uint32_t> ranks) const;

  // A name of the source, its tensor, and the rule that matches it.
  struct RuledName {
    const std::string* name = nullptr;
    const TensorEntry* tensor = nullptr;
    uint32_t rule = 0;
  };

 private:
  friend class LayoutRulesParser;
  struct Rule {
    std::vector<std::string> patterns;  // globs of FQNs; the first rule that matches counts
    Sharding sharding;
    Dtype dtype = Dtype::kUnspecified;
    bool drop = false;                 // the rank does not receive these
    std::vector<uint32_t> only_ranks;  // sorted; empty means all (EP, PP)

    // Whether `rank` receives the tensors of this rule.
    bool Gives(uint32_t rank, const std::vector<Mesh>& meshes) const;
  };
  // The rule for a tensor of that name. Null if none matches.
  const Rule* Match(std::string_view name) const;
  // For each rule, whether it gives its tensors to `rank`.
  std::vector<bool> GivesTo(uint32_t rank) const;
  using RuledNames = std::vector<RuledName>;
  absl::StatusOr<RuledNames> MatchAll(const CheckpointIndex& index) const;
  RankLayout LayoutOf(const CheckpointIndex& index, const RuledNames& names,
                      const std::vector<bool>& gives, uint32_t rank) const;
  // Groups ranks by the rules that give them anything, in the order of their first ranks.
  std::vector<std::pair<std::vector<bool>, std::vector<uint32_t>>> ByRules(
      std::span<const uint32_t> ranks) const;

  uint32_t world_size_ = 0;
  std::string description_;
  std::vector<Mesh> meshes_;
  std::vector<Rule> rules_;
};

// Where a sharding puts a tensor on one rank.
struct LocalGeometry {
  // Disjoint; together they are the whole local tensor. Empty if the rank holds nothing.
  std::vector<PlacedBox> boxes;
  Shape local_shape;             // unpadded; an empty shard keeps its other dimensions: (0, 3)
  uint64_t padded_elements = 0;  // >= product(local_shape); FSDP2's padding is zeros at the end
  bool present = true;  // false: the rank is not in the mesh, so it does not have the tensor
};

// By the arithmetic of common/source/placements.h. Checks the sharding itself too, because it
// may come from another process. Errors: InvalidArgument LAYOUT_INVALID (an invalid sharding) and
// LAYOUT_MISMATCH (one that does not fit this shape). Thread-safe.
absl::StatusOr<LocalGeometry> ResolveSharding(const Sharding& sharding,
                                              const std::vector<Mesh>& meshes,
                                              const Shape& global_shape, uint32_t rank);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_LAYOUT_H_

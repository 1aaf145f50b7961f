// The plan of ranks that ask for the same tensors by the same shardings: what they
// share is worked out once, what each receives once per kind of tensor. Pure.
#ifndef CKPTD_COMMON_PLAN_COHORT_PLAN_H_
#define CKPTD_COMMON_PLAN_COHORT_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/plan/flat_parameter.h"
#include "common/plan/plan.h"
#include "common/plan/tensor_kind.h"
#include "common/source/index.h"

namespace ckptd {

// What a tensor of some kind costs a rank.
struct KindShare {
  uint64_t slot_bytes = 0;  // of its slab, padding and alignment included; a member's: none
  uint64_t copies = 0;
  bool operator==(const KindShare&) const = default;
};

// A rank's plan in numbers.
struct PlannedRank {
  uint32_t rank = 0;
  uint64_t slab_bytes = 0;    // as in RankPlan
  uint64_t tensor_bytes = 0;
  uint64_t digest = 0;
  uint64_t content = 0;       // of all but the rank: equal for replicas, whose slabs are equal
  uint64_t copies = 0;        // RankPlan::ops.size()
  size_t tensors = 0;         // RankPlan::tensors.size()
  bool casts_down = false;    // some bytes become fewer
  uint64_t kind_copies = 0;   // of one tensor of each kind
  // Per kind; ranks that agree share it.
  std::shared_ptr<const std::vector<KindShare>> shares;
};

// Thread-safe once made. The index outlives it.
class CohortPlan {
 public:
  // `layout` is that of one of the ranks; the others' differ in `rank` alone, and are
  // in the same meshes. Errors: those of PlanRank that are the same for all ranks.
  static absl::StatusOr<CohortPlan> Make(const CheckpointIndex& index,
                                         std::shared_ptr<const RankLayout> layout,
                                         const DtypePolicy& policy);

  // One rank's plan, checked. `like` lends its memory where both agree; may be null.
  // Errors: those of PlanRank.
  absl::StatusOr<PlannedRank> Plan(uint32_t rank, const PlannedRank* like) const;

  // Tensors [first, last) in the order of the slab, prepared for Slice.
  struct Range {
    size_t first = 0;
    size_t last = 0;
    std::vector<uint64_t> before;    // per kind, how many tensors come before `first`
    std::vector<uint32_t> position;  // of each, among these sorted by name
    std::vector<uint32_t> numbers;   // of those sorted by name, in the whole plan
  };
  Range RangeOf(size_t first, size_t last) const;
  // The rank's plan of these tensors alone: `tensors`, `ops` and `tensor_bytes` are
  // theirs, everything else the whole plan's. `rank` comes from Plan.
  absl::StatusOr<RankPlan> Slice(const PlannedRank& rank, const Range& range) const;

  // In the order of the slab: that in which they lie in the files.
  struct Item {
    const TensorEntry* source = nullptr;
    FilePlace place;             // where the source begins
    uint32_t kind = 0;
    uint32_t first_place = 0;    // of its pieces
    uint32_t name_order = 0;     // among the items, by name
  };
  const std::vector<Item>& items() const { return items_; }
  const std::vector<TensorKind>& kinds() const { return kinds_; }
  const RankLayout& layout() const { return *layout_; }
  // Where the pieces that make up a kind begin, for one tensor of it.
  const FilePlace* PlacesOf(const Item& item) const { return places_.data() + item.first_place; }

 private:
  CohortPlan() = default;
  absl::Status SortIntoKinds(const CheckpointIndex& index);
  void DigestTensors();
  absl::Status AttributeToTensor(const absl::Status& status, uint32_t kind, uint32_t rank) const;

  std::shared_ptr<const RankLayout> layout_;
  std::vector<ResolvedTarget> wanted_;  // by name
  FlatTable flats_;
  std::vector<Item> items_;
  std::vector<FilePlace> places_;
  std::vector<TensorKind> kinds_;
  std::vector<uint64_t> kind_sizes_;   // how many tensors each has
  std::vector<uint32_t> kind_firsts_;  // the first item of each
  uint64_t digest_ = 0;                // of names, files and places
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_COHORT_PLAN_H_

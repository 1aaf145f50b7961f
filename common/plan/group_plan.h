// The plan of all ranks of a group, without a line per rank and tensor: every rank's
// numbers and digest at once, the tables and copies of single ranks, or of some
// tensors of all ranks, when they are asked for. Pure: no I/O.
#ifndef CKPTD_COMMON_PLAN_GROUP_PLAN_H_
#define CKPTD_COMMON_PLAN_GROUP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/plan/cohort_plan.h"
#include "common/plan/file_order.h"
#include "common/plan/plan.h"
#include "common/source/index.h"

namespace ckptd {

// Some tensors that some ranks want, with all their bytes. Windows are in file order
// and no byte belongs to two of them.
struct PlanWindow {
  std::vector<ItemSpan> items;  // per cohort
  uint64_t bytes = 0;           // of these tensors in the files
};

// Thread-safe once made.
class GroupPlan {
 public:
  // What was planned so far.
  struct Size {
    size_t ranks = 0;
    size_t copies = 0;  // different ones: tensors of a kind count once, at least one each
  };
  // Plans the ranks of all cohorts, each rank in one of them. `poll`, if set, is
  // called after each rank; its error ends planning. Errors: those of PlanRank, with
  // the fact "rank".
  static absl::StatusOr<GroupPlan> Make(std::shared_ptr<const CheckpointIndex> index,
                                        const std::vector<Cohort>& cohorts,
                                        const DtypePolicy& policy,
                                        const std::function<absl::Status(Size)>& poll = nullptr);

  // Ascending by rank.
  const std::vector<PlannedRank>& ranks() const { return ranks_; }
  // nullptr for a rank that is not in the plan.
  const PlannedRank* Find(uint32_t rank) const;
  // Sum over all ranks.
  uint64_t digest() const;
  const CheckpointIndex& index() const { return *index_; }

  // As ReadBytesPerFile for all ranks.
  std::vector<uint64_t> ReadBytes() const;
  // Tensor bytes of all ranks' shards, equal shards once.
  uint64_t DistinctBytes() const;

  // All tensors of these ranks, cut into windows of about `copies` copies, or as near as
  // the files allow. What other ranks there are makes no difference.
  std::vector<PlanWindow> Windows(std::span<const PlannedRank* const> ranks,
                                  uint64_t copies) const;
  // The same, cut where the windows of a ScatterOrder begin: one for each of them.
  std::vector<PlanWindow> WindowsAt(std::span<const FilePlace> begins) const;
  // As FindWholeTensors, of the cohorts of these ranks.
  std::vector<uint32_t> WholeOn(std::span<const PlannedRank* const> ranks,
                                uint64_t least_bytes) const;
  // A window, ready to be planned for one rank after the other. Thread-safe.
  class Open {
   public:
    // The rank's plan for the tensors of the window; see CohortPlan::Slice.
    absl::StatusOr<RankPlan> PlanOf(const PlannedRank& rank) const;
    // For each tensor of that plan, its number in the rank's whole plan.
    const std::vector<uint32_t>& NumbersOf(const PlannedRank& rank) const;

   private:
    friend class GroupPlan;
    const GroupPlan* group_ = nullptr;
    std::vector<CohortPlan::Range> ranges_;
  };
  // The group outlives it.
  Open OpenWindow(const PlanWindow& window) const;

 private:
  GroupPlan() = default;
  absl::Status Add(const Cohort& cohort, const DtypePolicy& policy,
                   const std::function<absl::Status(Size)>& poll);
  void SortRanks();
  // Each cohort, and those of `ranks` that belong to it; other cohorts are left out.
  struct Members {
    std::vector<const CohortPlan*> cohorts;
    std::vector<size_t> numbers;  // of these cohorts
    std::vector<std::vector<const PlannedRank*>> ranks;
  };
  Members MembersOf(std::span<const PlannedRank* const> ranks) const;
  size_t CohortOf(const PlannedRank& rank) const {
    return cohort_of_[static_cast<size_t>(&rank - ranks_.data())];
  }

  std::shared_ptr<const CheckpointIndex> index_;
  std::vector<std::unique_ptr<const CohortPlan>> cohorts_;
  std::vector<PlannedRank> ranks_;
  std::vector<uint32_t> cohort_of_;  // per rank
  Size size_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_GROUP_PLAN_H_

// The arithmetic of flat parameters: which run of one a rank holds, and where it lies in a slab.
// BoxesOfRange has the boxes of a member that a run covers. Pure; thread-safe.
#ifndef CKPTD_COMMON_PLAN_FLAT_PARAMETER_H_
#define CKPTD_COMMON_PLAN_FLAT_PARAMETER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/layout/resolved_target.h"
#include "common/plan/plan.h"

namespace ckptd {

// Elements [begin, end) of a flat tensor; behind them zeros up to padded_elements.
struct FlatRun {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t padded_elements = 0;
};

// What `rank` holds of a flat tensor of so many elements. The rank is in the sharding's
// mesh. Errors: ResolveSharding's; LAYOUT_MISMATCH when that is more than one run.
absl::StatusOr<FlatRun> RunOf(const Sharding& sharding, const std::vector<Mesh>& meshes,
                              uint64_t elements, uint32_t rank);

// Those flat parameters of a layout that have a member in `wanted`, placed in a slab.
class FlatTable {
 public:
  // Errors: LAYOUT_MISMATCH for members that overlap, end behind their flat tensor or
  // differ in dtype. The layout outlives it.
  static absl::StatusOr<FlatTable> Make(const RankLayout& layout,
                                        const std::vector<ResolvedTarget>& wanted);

  // Where `rank` has them, from the slab's begin on; `end` is where the last one ends,
  // aligned. Errors: RunOf's; LAYOUT_MISMATCH for bytes that do not fit 64 bits.
  absl::StatusOr<std::vector<PlannedFlat>> PlaceFor(uint32_t rank, uint64_t& end) const;
  // The index into what PlaceFor returns of this flat parameter, which has a member in `wanted`.
  uint32_t NumberOf(const FlatPlace& place) const { return numbers_[place.flat]; }

 private:
  struct Entry {
    const FlatParameter* flat = nullptr;
    Dtype dtype = Dtype::kUnspecified;
  };
  const RankLayout* layout_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<uint32_t> numbers_;  // per flat parameter of the layout
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_FLAT_PARAMETER_H_

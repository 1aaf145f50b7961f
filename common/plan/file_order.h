// Tensors in the order in which they lie in the files, and the places at which that order can be cut
// into steps. Pure.
#ifndef CKPTD_COMMON_PLAN_FILE_ORDER_H_
#define CKPTD_COMMON_PLAN_FILE_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/plan/cohort_plan.h"
#include "common/plan/tensor_kind.h"
#include "common/source/index.h"

namespace ckptd {

// A run of items of one cohort.
using ItemSpan = std::pair<size_t, size_t>;  // [first, last)

// Tensors that begin at the same place.
struct PlaceInOrder {
  FilePlace place;
  uint64_t bytes = 0;    // of their pieces
  uint32_t tensors = 0;  // how many of the source
  // In every file, everything before this place ends before everything from it on
  // begins: nothing is read twice when the order is cut here.
  bool can_cut = true;
};

// All places where tensors of the cohorts begin, ascending.
std::vector<PlaceInOrder> OrderInFiles(const CheckpointIndex& index,
                                       std::span<const CohortPlan* const> cohorts);
// The same for all tensors of the index, whoever wants them.
std::vector<PlaceInOrder> OrderInFiles(const CheckpointIndex& index);

// Follows a cohort's items along that order.
class ItemCursor {
 public:
  explicit ItemCursor(const CohortPlan* cohort) : items_(&cohort->items()) {}
  // The items from the last call's end up to those that begin at `place` or later.
  ItemSpan UpTo(const FilePlace& place);
  ItemSpan Rest() { return {std::exchange(next_, items_->size()), items_->size()}; }

 private:
  const std::vector<CohortPlan::Item>* items_;
  size_t next_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_FILE_ORDER_H_

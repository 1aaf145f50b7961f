#include "common/plan/window_cuts.h"

#include <utility>

namespace ckptd {
namespace {

// Copies that the ranks have of one tensor of each kind.
std::vector<uint64_t> CopiesPerKind(const CohortPlan& cohort,
                                    const std::vector<const PlannedRank*>& ranks) {
  std::vector<uint64_t> copies(cohort.kinds().size());
  for (const PlannedRank* rank : ranks) {
    for (size_t k = 0; k < copies.size(); ++k) copies[k] += (*rank->shares)[k].copies;
  }
  return copies;
}

// Copies of the items that begin before each place of the order.
std::vector<uint64_t> CopiesBefore(const std::vector<PlaceInOrder>& order,
                                   std::span<const CohortPlan* const> cohorts,
                                   const std::vector<std::vector<const PlannedRank*>>& members) {
  std::vector<uint64_t> before(order.size() + 1);
  for (size_t c = 0; c < cohorts.size(); ++c) {
    const std::vector<uint64_t> per_kind = CopiesPerKind(*cohorts[c], members[c]);
    size_t position = 0;
    for (const CohortPlan::Item& item : cohorts[c]->items()) {
      while (order[position].place < item.place) ++position;
      before[position + 1] += per_kind[item.kind];
    }
  }
  for (size_t i = 0; i < order.size(); ++i) before[i + 1] += before[i];
  return before;
}

}  // namespace

std::vector<CutWindow> CutWindows(const CheckpointIndex& index,
                                  std::span<const CohortPlan* const> cohorts,
                                  const std::vector<std::vector<const PlannedRank*>>& members,
                                  uint64_t copies) {
  const std::vector<PlaceInOrder> order = OrderInFiles(index, cohorts);
  const std::vector<uint64_t> before = CopiesBefore(order, cohorts, members);
  std::vector<ItemCursor> cursors(cohorts.begin(), cohorts.end());
  std::vector<CutWindow> windows;
  CutWindow window;
  size_t first = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i].can_cut && before[i] - before[first] >= copies && i > first) {
      for (ItemCursor& cursor : cursors) window.items.push_back(cursor.UpTo(order[i].place));
      windows.push_back(std::exchange(window, {}));
      first = i;
    }
    window.bytes += order[i].bytes;
  }
  for (ItemCursor& cursor : cursors) window.items.push_back(cursor.Rest());
  windows.push_back(std::move(window));
  return windows;
}

}  // namespace ckptd

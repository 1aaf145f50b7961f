#include "common/plan/group_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/plan/whole_tensors.h"
#include "common/plan/window_cuts.h"
#include "common/plan/zone_reads.h"

namespace ckptd {
namespace {

absl::Status AttributeToRank(uint32_t rank, const absl::Status& status) {
  if (FactsOf(status).count("rank") > 0) return status;
  return WithFact(WithContext(status, fmt::format("rank {}", rank)), "rank", std::to_string(rank));
}

}  // namespace

absl::StatusOr<GroupPlan> GroupPlan::Make(std::shared_ptr<const CheckpointIndex> index,
                                          const std::vector<Cohort>& cohorts,
                                          const DtypePolicy& policy,
                                          const std::function<absl::Status(Size)>& poll) {
  GroupPlan group;
  group.index_ = std::move(index);
  for (const Cohort& cohort : cohorts) CKPTD_RETURN_IF_ERROR(group.Add(cohort, policy, poll));
  group.SortRanks();
  return group;
}

absl::Status GroupPlan::Add(const Cohort& cohort, const DtypePolicy& policy,
                            const std::function<absl::Status(Size)>& poll) {
  auto made = CohortPlan::Make(*index_, cohort.layout, policy);
  if (!made.ok()) return AttributeToRank(cohort.layout->rank, made.status());
  cohorts_.push_back(std::make_unique<const CohortPlan>(*std::move(made)));
  for (const uint32_t rank : cohort.ranks) {
    const bool follows = !cohort_of_.empty() && cohort_of_.back() + 1 == cohorts_.size();
    auto planned = cohorts_.back()->Plan(rank, follows ? &ranks_.back() : nullptr);
    if (!planned.ok()) return AttributeToRank(rank, planned.status());
    // A kind that the rank receives nothing of takes its time, too.
    size_.copies += std::max<uint64_t>(planned->kind_copies, planned->shares->size());
    ranks_.push_back(*std::move(planned));
    cohort_of_.push_back(static_cast<uint32_t>(cohorts_.size() - 1));
    ++size_.ranks;
    if (poll) CKPTD_RETURN_IF_ERROR(poll(size_));
  }
  return absl::OkStatus();
}

void GroupPlan::SortRanks() {
  const auto by_rank = [](const PlannedRank& a, const PlannedRank& b) { return a.rank < b.rank; };
  if (std::is_sorted(ranks_.begin(), ranks_.end(), by_rank)) return;
  std::vector<uint32_t> order(ranks_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return by_rank(ranks_[a], ranks_[b]); });
  std::vector<PlannedRank> ranks;
  std::vector<uint32_t> cohort_of;
  for (const uint32_t old : order) {
    ranks.push_back(std::move(ranks_[old]));
    cohort_of.push_back(cohort_of_[old]);
  }
  ranks_ = std::move(ranks);
  cohort_of_ = std::move(cohort_of);
}

const PlannedRank* GroupPlan::Find(uint32_t rank) const {
  const auto at =
      std::lower_bound(ranks_.begin(), ranks_.end(), rank,
                       [](const PlannedRank& one, uint32_t wanted) { return one.rank < wanted; });
  return at != ranks_.end() && at->rank == rank ? &*at : nullptr;
}

uint64_t GroupPlan::digest() const {
  std::vector<uint64_t> digests;
  digests.reserve(ranks_.size());
  for (const PlannedRank& rank : ranks_) digests.push_back(rank.digest);
  return CombineDigests(digests);
}

GroupPlan::Members GroupPlan::MembersOf(std::span<const PlannedRank* const> ranks) const {
  Members members;
  std::vector<size_t> at(cohorts_.size(), cohorts_.size());
  for (const PlannedRank* rank : ranks) {
    const size_t number = CohortOf(*rank);
    if (at[number] == cohorts_.size()) {
      at[number] = members.cohorts.size();
      members.cohorts.push_back(cohorts_[number].get());
      members.numbers.push_back(number);
      members.ranks.emplace_back();
    }
    members.ranks[at[number]].push_back(rank);
  }
  return members;
}

std::vector<uint64_t> GroupPlan::ReadBytes() const {
  std::vector<const PlannedRank*> all;
  for (const PlannedRank& rank : ranks_) all.push_back(&rank);
  const Members members = MembersOf(all);
  return ReadBytesOf(*index_, members.cohorts, members.ranks);
}

uint64_t GroupPlan::DistinctBytes() const {
  std::set<uint64_t> seen;
  uint64_t bytes = 0;
  for (const PlannedRank& rank : ranks_) {
    if (seen.insert(rank.content).second) bytes += rank.tensor_bytes;
  }
  return bytes;
}

std::vector<PlanWindow> GroupPlan::Windows(std::span<const PlannedRank* const> ranks,
                                           uint64_t copies) const {
  const Members members = MembersOf(ranks);
  std::vector<PlanWindow> windows;
  for (CutWindow& cut : CutWindows(*index_, members.cohorts, members.ranks, copies)) {
    PlanWindow& window = windows.emplace_back();
    window.bytes = cut.bytes;
    window.items.resize(cohorts_.size());
    for (size_t i = 0; i < cut.items.size(); ++i) window.items[members.numbers[i]] = cut.items[i];
  }
  return windows;
}

std::vector<PlanWindow> GroupPlan::WindowsAt(std::span<const FilePlace> begins) const {
  std::vector<PlanWindow> windows(begins.size());
  for (const auto& cohort : cohorts_) {
    ItemCursor cursor(cohort.get());
    for (size_t i = 0; i < begins.size(); ++i) {
      const bool last = i + 1 == begins.size();
      windows[i].items.push_back(last ? cursor.Rest() : cursor.UpTo(begins[i + 1]));
    }
  }
  return windows;
}

std::vector<uint32_t> GroupPlan::WholeOn(std::span<const PlannedRank* const> ranks,
                                         uint64_t least_bytes) const {
  return FindWholeTensors(*index_, MembersOf(ranks).cohorts, least_bytes);
}

GroupPlan::Open GroupPlan::OpenWindow(const PlanWindow& window) const {
  Open open;
  open.group_ = this;
  for (size_t c = 0; c < cohorts_.size(); ++c) {
    open.ranges_.push_back(cohorts_[c]->RangeOf(window.items[c].first, window.items[c].second));
  }
  return open;
}

absl::StatusOr<RankPlan> GroupPlan::Open::PlanOf(const PlannedRank& rank) const {
  const size_t cohort = group_->CohortOf(rank);
  return group_->cohorts_[cohort]->Slice(rank, ranges_[cohort]);
}

const std::vector<uint32_t>& GroupPlan::Open::NumbersOf(const PlannedRank& rank) const {
  return ranges_[group_->CohortOf(rank)].numbers;
}

}  // namespace ckptd

#include "server/core/dry_run.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/open.h"
#include "server/core/rank_side.h"

namespace ckptd {
namespace {

// Of time: a rank of a mesh costs far less than a copy.
constexpr size_t kMeshRanksPerCopy = 64;

size_t CopiesOf(const RankLayout& layout, const RankPlan& plan) {
  size_t mesh_ranks = 0;
  for (const Mesh& mesh : layout.meshes) mesh_ranks += mesh.ranks.size();
  return 1 + plan.tensors.size() + plan.ops.size() + mesh_ranks / kMeshRanksPerCopy;
}

// Rules may be for any number of ranks: neither memory nor the worker's time grows
// with what a caller writes there.
absl::Status CheckTime(const LoadRequest& request, size_t ranks, Deadline deadline) {
  if (Clock::now() > deadline) {
    return MakeError(
        absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
        fmt::format("planning {}: time was up after {} rank{}; plan for fewer ranks, or "
                    "without the daemon (`ckptctl plan`)",
                    request.source, ranks, ranks == 1 ? "" : "s"));
  }
  return absl::OkStatus();
}

absl::Status TooMany(const LoadRequest& request, size_t ranks, size_t max_copies) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("planning {}: more than {} copies for the first {} rank{}, too many to keep "
                               "beside the shards; plan for fewer ranks, or without the daemon "
                               "(`ckptctl plan`)",
                               request.source, max_copies, ranks, ranks == 1 ? "" : "s"));
}

}  // namespace

absl::StatusOr<DryRun> PlanDry(const LoadRequest& request, uint32_t own, Deadline deadline,
                               size_t max_copies) {
  DryRun dry;
  CKPTD_ASSIGN_OR_RETURN(dry.index, OpenCheckpoint(request.source));
  std::optional<LayoutRules> rules;
  if (const auto* text = std::get_if<std::string>(&request.layout)) {
    CKPTD_ASSIGN_OR_RETURN(rules, LayoutRules::Parse(*text));
  }
  const uint32_t first = rules.has_value() ? 0 : own;
  const uint32_t last = rules.has_value() ? rules->world_size() : own + 1;
  size_t copies = 0;
  for (uint32_t rank = first; rank < last; ++rank) {
    CKPTD_ASSIGN_OR_RETURN(const RankLayout layout, rules.has_value()
                                                        ? rules->ForRank(dry.index, rank)
                                                        : LayoutOfRank(request, dry.index, rank));
    CKPTD_ASSIGN_OR_RETURN(RankPlan one, PlanRank(dry.index, layout, request.policy));
    copies += CopiesOf(layout, one);
    dry.plans.push_back(std::move(one));
    if (copies > max_copies) return TooMany(request, last - first, max_copies);
    CKPTD_RETURN_IF_ERROR(CheckTime(request, dry.plans.size(), deadline));
  }
  return dry;
}

}  // namespace ckptd

#include "server/node/dry_run.h"

#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "server/load/check_request.h"
#include "server/load/rank_load.h"
#include "server/node/open_seen.h"

namespace ckptd {
namespace {

// Rules may be for any number of ranks, so the caller must not decide how much memory and time
// this takes.
absl::Status CheckSize(const LoadRequest& request, GroupPlan::Size size, Deadline deadline,
                       size_t max_copies) {
  if (size.ranks + size.copies > max_copies) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("planning {}: its ranks need more than {} different copies, too "
                                 "many to keep in memory next to the shards; plan for fewer ranks, "
                                 "or without the daemon (`ckptctl plan`)",
                                 request.source, max_copies));
  }
  if (Clock::now() > deadline) {
    return MakeError(
        absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
        fmt::format("planning {}: the deadline passed after {} rank{}; plan for fewer ranks, or "
                    "without the daemon (`ckptctl plan`)",
                    request.source, size.ranks, size.ranks == 1 ? "" : "s"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GroupPlan> PlanDry(const LoadRequest& request, uint32_t own, Deadline deadline,
                                  size_t max_copies, const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenSeen(request.source, request.view, access));
  const auto index = std::make_shared<const CheckpointIndex>(std::move(opened.index));
  std::vector<uint32_t> ranks = {own};
  std::vector<std::shared_ptr<const RankLayout>> layouts;
  if (const auto* text = std::get_if<std::string>(&request.layout)) {
    CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules, LayoutRules::Parse(*text));
    ranks.resize(rules.world_size());
    std::iota(ranks.begin(), ranks.end(), 0u);
  } else {
    layouts.push_back(std::get<std::shared_ptr<const RankLayout>>(request.layout));
    CKPTD_RETURN_IF_ERROR(CheckRankOf("planning", *layouts.back(), own, request.source));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Cohort> cohorts,
                         CohortsOf(request, *index, ranks, layouts));
  return GroupPlan::Make(index, cohorts, request.policy, [&](GroupPlan::Size size) {
    return CheckSize(request, size, deadline, max_copies);
  });
}

absl::StatusOr<DeviceMap> PlanDevices(const DeviceMapRequest& request,
                                      const SourceAccess& access) {
  CKPTD_ASSIGN_OR_RETURN(const CheckpointIndex index, OpenCheckpoint(request.source, access));
  CKPTD_ASSIGN_OR_RETURN(const ModuleTree tree, ModuleTree::Make(index, request.tree));
  return PlanDeviceMap(tree, request.devices);
}

}  // namespace ckptd

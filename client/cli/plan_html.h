// A plan as one page of HTML, without anything outside of it: which rank gets which part of which
// file.
#ifndef CKPTD_CLIENT_CLI_PLAN_HTML_H_
#define CKPTD_CLIENT_CLI_PLAN_HTML_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/plan/group_plan.h"

namespace ckptd::cli {

// Each file is a bar from its first byte to its last; below it, each rank has a line, darker where it
// gets more of what lies there. Shows kMostRanksDrawn ranks and kMostFilesDrawn files, and says so
// where there are more. Names are escaped. Errors: those of planning a rank.
inline constexpr size_t kMostRanksDrawn = 64;
inline constexpr size_t kMostFilesDrawn = 200;
absl::StatusOr<std::string> PlanHtml(const GroupPlan& plan, const std::string& layout);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_PLAN_HTML_H_

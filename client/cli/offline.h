// The functions of ckptctl that need files only, and no daemon.
#ifndef CKPTD_CLIENT_CLI_OFFLINE_H_
#define CKPTD_CLIENT_CLI_OFFLINE_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/output.pb.h"
#include "client/cpp/types.h"
#include "common/layout/layout.h"
#include "common/plan/group_plan.h"
#include "common/source/index.h"
#include "common/source/open.h"

namespace ckptd::cli {

// Adds --view, which the functions below take.
void AddViewOption(CLI::App& verb, std::string& view);

// The text of a view as a person gives it for a source: the JSON itself, a file that holds it (FILE.json
// or @FILE), or a set's name, whose numbers come from the config.json beside the source; "inverse:"
// before it stays. Empty: none. Errors: those of ReadSmallFile and ReadView.
absl::StatusOr<std::string> ViewText(const std::string& view, const std::string& source);

// As OpenWithRemarks, for a source as a person writes it. `view`: through which it is seen, as
// ViewText takes it. Errors: also those of AbsolutePath, ViewText and view::Apply.
absl::StatusOr<OpenedCheckpoint> OpenNamed(const std::string& named, const std::string& view = "");

// Reads the headers of a source. Errors as OpenNamed.
absl::StatusOr<SourceInfo> InspectOffline(const std::string& source, const std::string& view = "");

// The bytes of all pieces.
uint64_t BytesOf(const TensorEntry& tensor);
uint64_t BytesOf(const CheckpointIndex& index);

// The bytes of each file that no tensor of the index has: other parts, a header, and what views
// leave of the storages that were saved with them. Gaps inside of a view count as the view's. 0 for
// files without tensors.
std::vector<uint64_t> UnusedBytes(const CheckpointIndex& index);

// Prints each on a line of its own, as a note.
void PrintRemarks(const std::vector<std::string>& remarks, std::ostream& out);

struct OfflinePlan {
  GroupPlan plan;
  std::vector<std::string> remarks;  // on the source
};

// Plans every rank of a layout in rule form. Errors: those of OpenNamed, LayoutRules and PlanRank.
absl::StatusOr<OfflinePlan> PlanOffline(const std::string& source, const std::string& view,
                                        const std::string& layout, const DtypePolicy& policy);
// A plan as it is printed, with warnings, without a prediction.
PlanOutput ToOutput(const GroupPlan& plan);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_OFFLINE_H_

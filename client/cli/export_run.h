// Common parts of the verbs that write checkpoints: convert, merge and split.
#ifndef CKPTD_CLIENT_CLI_EXPORT_RUN_H_
#define CKPTD_CLIENT_CLI_EXPORT_RUN_H_

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/context.h"
#include "common/export/export.h"
#include "common/source/format.h"

namespace ckptd::cli {

// Options that choose tensors.
struct ChoiceOptions {
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  std::vector<std::string> rename;
};
// `renamed`: whose names --rename changes ("names").
void AddChoiceOptions(CLI::App& verb, const std::string& renamed, ChoiceOptions& options);
// Errors: usage errors, those of ParseRenameRules.
absl::StatusOr<Choice> ToChoice(const ChoiceOptions& options);

// Calls Export with a progress display, and prints the result: what was written and what of the
// source was left out. Returns the exit code; an interrupted run has left nothing.
absl::StatusOr<int> RunExport(const OpenedCheckpoint& source, const Content& content,
                              const std::string& target, ExportOptions options, Context& context);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_EXPORT_RUN_H_

// The verbs of ckptctl. Each Add... function declares one with its options and help, and sets
// Context::action when it is chosen. One .cc file per group of verbs.
#ifndef CKPTD_CLIENT_CLI_VERBS_H_
#define CKPTD_CLIENT_CLI_VERBS_H_

#include <CLI/App.hpp>
#include <string>
#include <string_view>

#include "client/cli/context.h"

namespace ckptd::cli {

void AddInspect(CLI::App& app, Context& context);
void AddPlan(CLI::App& app, Context& context);
void AddLoad(CLI::App& app, Context& context);
void AddWatch(CLI::App& app, Context& context);
void AddWait(CLI::App& app, Context& context);
void AddList(CLI::App& app, Context& context);
void AddGet(CLI::App& app, Context& context);
void AddVerify(CLI::App& app, Context& context);
void AddConvert(CLI::App& app, Context& context);
void AddMerge(CLI::App& app, Context& context);
void AddSplit(CLI::App& app, Context& context);
void AddDiff(CLI::App& app, Context& context);
void AddUnload(CLI::App& app, Context& context);
void AddPin(CLI::App& app, Context& context);
void AddLeases(CLI::App& app, Context& context);
void AddInfo(CLI::App& app, Context& context);
void AddTrim(CLI::App& app, Context& context);
void AddDrain(CLI::App& app, Context& context);
void AddLogLevel(CLI::App& app, Context& context);
void AddCompletion(CLI::App& app, Context& context);
void AddVersion(CLI::App& app, Context& context);

// Adds a verb with a one-line description and examples.
CLI::App* AddVerb(CLI::App& app, const std::string& name, const std::string& description,
                  const std::string& footer);

// Prints the fields of one checkpoint. Errors: those of PrintJson.
absl::Status PrintCheckpoint(const v1::Checkpoint& checkpoint, Context& context);

// Follows a load with a progress display. Cancelled if Ctrl-C ended it.
absl::StatusOr<v1::Checkpoint> Follow(Client& client, const std::string& name, Timeout timeout,
                                      Context& context);
// Tells that the load continues. Returns the exit code of an interrupted run.
int ReportInterrupted(const std::string& name, Context& context);

// The completion script for a shell ("bash", "zsh", "fish"), from the verbs and options of `app`.
std::string CompletionScript(const CLI::App& app, std::string_view shell);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_VERBS_H_

// The verbs of ckptctl. Each Add... declares one with its options and help, and
// sets Context::action when it is named. One .cc per group.
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
void AddList(CLI::App& app, Context& context);
void AddGet(CLI::App& app, Context& context);
void AddVerify(CLI::App& app, Context& context);
void AddUnload(CLI::App& app, Context& context);
void AddPin(CLI::App& app, Context& context);
void AddLeases(CLI::App& app, Context& context);
void AddInfo(CLI::App& app, Context& context);
void AddTrim(CLI::App& app, Context& context);
void AddDrain(CLI::App& app, Context& context);
void AddLogLevel(CLI::App& app, Context& context);
void AddCompletion(CLI::App& app, Context& context);
void AddVersion(CLI::App& app, Context& context);

// A verb with its one-line description and its examples.
CLI::App* AddVerb(CLI::App& app, const std::string& name, const std::string& description,
                  const std::string& footer);

// "name: state ..." of one checkpoint, field by field.
void PrintCheckpoint(const CheckpointInfo& checkpoint, Context& context);

// Follows a load with a progress display. Cancelled when Ctrl-C ended it.
absl::StatusOr<CheckpointInfo> Follow(Client& client, const CheckpointInfo& checkpoint,
                                      Timeout timeout, Context& context);
// Tells that the load goes on; the exit code of an interrupted run.
int ReportInterrupted(const std::string& name, Context& context);

// Completion script of a shell ("bash", "zsh", "fish"), from the verbs and
// options that `app` has.
std::string CompletionScript(const CLI::App& app, std::string_view shell);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_VERBS_H_

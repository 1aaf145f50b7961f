// The command line of `ckptd`, together with the configuration file and the
// variables that it stands for.
#ifndef CKPTD_SERVER_DAEMON_COMMAND_LINE_H_
#define CKPTD_SERVER_DAEMON_COMMAND_LINE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/daemon/commands.h"
#include "server/daemon/config.h"

namespace ckptd {

struct CommandLine {
  // kPrint: `text` was asked for, help or the version.
  enum class Verb : uint8_t { kRun, kLaunch, kConfig, kPrint };
  Verb verb = Verb::kPrint;
  Config config;
  LaunchOptions launch;
  std::string text;
};

// Reads the environment and, where one is named, the configuration file. Errors:
// InvalidArgument CONFIG_INVALID. Values are checked by CheckConfig, not here.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_COMMAND_LINE_H_

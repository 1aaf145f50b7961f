// The command line of `ckptd`, together with the configuration file and the
// variables that it stands for.
#ifndef CKPTD_SERVER_DAEMON_COMMAND_LINE_H_
#define CKPTD_SERVER_DAEMON_COMMAND_LINE_H_

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/daemon/commands.h"
#include "server/daemon/config.h"

namespace ckptd {

struct CommandLine {
  // kPrint: `text` was asked for, help or the version.
  enum class Verb : uint8_t { kRun, kLaunch, kConfig, kInfo, kPrint };
  Verb verb = Verb::kPrint;
  Config config;
  LaunchOptions launch;
  std::string text;
};

// Declaring the flags costs a hundred times what reading a command line does, so a
// parser can be used again. Not thread-safe.
class CommandLineParser {
 public:
  // Reads the environment: what it says are the defaults that --help shows.
  CommandLineParser();
  CommandLineParser(const CommandLineParser&) = delete;
  CommandLineParser& operator=(const CommandLineParser&) = delete;

  // Reads the environment and, where one is named, the configuration file; nothing
  // of what was parsed before. Errors: InvalidArgument CONFIG_INVALID. Values are
  // checked by CheckConfig, not here.
  absl::StatusOr<CommandLine> Parse(int argc, const char* const* argv);

 private:
  CommandLine line_;  // what the flags write to
  CLI::App app_;
  CLI::App* run_ = nullptr;  // of app_
  CLI::App* launch_ = nullptr;
  CLI::App* info_ = nullptr;
};

// With a parser of its own.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_COMMAND_LINE_H_

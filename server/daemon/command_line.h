// The command line of `ckptd`, with the configuration file and the variables that can replace
// flags.
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
  // kPrint: `text` is to be printed, the help or the version.
  enum class Verb : uint8_t { kRun, kLaunch, kStop, kKeep, kConfig, kInfo, kPrint };
  Verb verb = Verb::kPrint;
  Config config;
  LaunchOptions launch;
  KeepOptions keep;
  std::string text;
};

// Declaring the flags takes a hundred times longer than reading a command line, so a parser can
// be used again. Not thread-safe.
class CommandLineParser {
 public:
  // Reads the environment: its values become the defaults that --help shows.
  CommandLineParser();
  CommandLineParser(const CommandLineParser&) = delete;
  CommandLineParser& operator=(const CommandLineParser&) = delete;

  // Reads the environment and, if one is named, the configuration file. Earlier results have no
  // influence. Values are checked by CheckConfig, not here. Errors: InvalidArgument
  // CONFIG_INVALID.
  absl::StatusOr<CommandLine> Parse(int argc, const char* const* argv);

 private:
  CommandLine line_;  // the flags write to it
  CLI::App app_;
  CLI::App* run_ = nullptr;  // a part of app_
  CLI::App* launch_ = nullptr;
  CLI::App* stop_ = nullptr;
  CLI::App* keep_ = nullptr;
  CLI::App* info_ = nullptr;
};

// The same with a new parser.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_COMMAND_LINE_H_

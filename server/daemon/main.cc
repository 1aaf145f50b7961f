// ckptd: the checkpoint loader daemon.
#include <fmt/format.h>

#include <cstdio>

#include "common/base/status.h"
#include "server/daemon/command_line.h"

int main(int argc, char** argv) {
  const auto line = ckptd::ParseCommandLine(argc, argv);
  if (!line.ok()) {
    fmt::print(stderr, "ckptd: {}. See `ckptd --help`.\n", ckptd::MessageOf(line.status()));
    return ckptd::kExitUsage;
  }
  switch (line->verb) {
    case ckptd::CommandLine::Verb::kRun:
      return ckptd::RunCommand(line->config);
    case ckptd::CommandLine::Verb::kLaunch:
      return ckptd::LaunchCommand(line->config, line->launch);
    case ckptd::CommandLine::Verb::kPrint:
      fmt::print("{}", line->text);
      break;
    case ckptd::CommandLine::Verb::kConfig:
      for (const auto& [key, value] : ckptd::Describe(line->config)) {
        fmt::print("{} = \"{}\"\n", key, value);
      }
      break;
  }
  return ckptd::kExitOk;
}

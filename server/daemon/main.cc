// ckptd: the checkpoint loader daemon.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "common/base/status.h"
#include "server/daemon/command_line.h"

namespace {

// What a command prints, to its last byte.
int Say(const std::string& text) {
  const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (whole && std::fflush(stdout) == 0) return ckptd::kExitOk;
  const int error = errno;
  fmt::print(stderr, "ckptd: writing to standard output: {}\n", std::strerror(error));
  return ckptd::kExitFailed;
}

std::string TextOf(const ckptd::Config& config) {
  std::string text;
  for (const auto& [key, value] : ckptd::Describe(config)) {
    text += fmt::format("{} = \"{}\"\n", key, value);
  }
  return text;
}

}  // namespace

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
      return Say(line->text);
    case ckptd::CommandLine::Verb::kConfig:
      return Say(TextOf(line->config));
  }
  return ckptd::kExitOk;
}

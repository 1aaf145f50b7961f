// ckptd: the checkpoint loader daemon.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "server/daemon/check_config.h"
#include "server/daemon/command_line.h"
#include "server/daemon/memory_tier.h"

namespace {

// Prints all of `text`, or fails.
int Print(const std::string& text) {
  const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (whole && std::fflush(stdout) == 0) return ckptd::kExitOk;
  const int error = errno;
  fmt::print(stderr, "ckptd: writing to standard output: {}\n", std::strerror(error));
  return ckptd::kExitFailed;
}

// A string in TOML syntax.
std::string Quoted(const std::string& value) {
  return "\"" + absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}}) + "\"";
}

template <typename Pairs>
std::string TextOf(const Pairs& pairs) {
  std::string text;
  for (const auto& [key, value] : pairs) {
    text += fmt::format("{} = {}\n", key, Quoted(value));
  }
  return text;
}

int Info(const ckptd::Config& config) {
  absl::Status status = ckptd::CheckConfig(config);
  if (status.ok()) {
    const auto found = ckptd::DescribeMachine(config);
    if (found.ok()) {
      return Print("version = \"" CKPTD_VERSION "\"\n" + TextOf(*found));
    }
    status = found.status();
  }
  ckptd::PrintError(status);
  return ckptd::kExitUsage;  // the same as for `run`
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
    case ckptd::CommandLine::Verb::kKeep:
      return ckptd::KeepCommand(line->config, line->keep);
    case ckptd::CommandLine::Verb::kStop:
      return ckptd::StopCommand(line->config, line->launch);
    case ckptd::CommandLine::Verb::kPrint:
      return Print(line->text);
    case ckptd::CommandLine::Verb::kConfig:
      return Print(TextOf(ckptd::Describe(line->config)));
    case ckptd::CommandLine::Verb::kInfo:
      return Info(line->config);
  }
  return ckptd::kExitOk;
}

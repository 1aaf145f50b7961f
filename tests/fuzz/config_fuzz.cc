// Feeds arbitrary variables, flags and a configuration file to what the daemon makes
// its settings of. The input is three parts, divided by lines "---": variables
// (NAME=value), arguments, one on each line, and the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/posix.h"
#include "server/daemon/command_line.h"
#include "server/daemon/network.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

constexpr size_t kMaxLines = 32;

std::string_view TakeUntil(std::string_view separator, std::string_view& rest) {
  const size_t end = rest.find(separator);
  const std::string_view part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + separator.size());
  return part;
}

// Of the variables that the daemon reads; gone at the end.
class Variables {
 public:
  explicit Variables(std::string_view text) {
    while (!text.empty() && names_.size() < kMaxLines) {
      std::string_view line = TakeUntil("\n", text);
      const std::string name(TakeUntil("=", line));
      const bool ours = name.starts_with("CKPTD_") || name.starts_with("SLURM_") ||
                        name.ends_with("RANK") || name.ends_with("WORLD_SIZE") ||
                        name == "MASTER_ADDR" || name == "XDG_RUNTIME_DIR";
      if (!ours || name == "CKPTD_CONFIG" || name.find('\0') != std::string::npos) continue;
      ::setenv(name.c_str(), std::string(line).c_str(), 1);
      names_.push_back(name);
    }
  }
  ~Variables() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::string> names_;
};

std::vector<std::string> Arguments(std::string_view text) {
  std::vector<std::string> arguments = {"ckptd"};
  while (!text.empty() && arguments.size() < kMaxLines) {
    std::string argument(TakeUntil("\n", text));
    argument.resize(argument.find('\0') == std::string::npos ? argument.size()
                                                             : argument.find('\0'));
    // Other files are not for reading here.
    if (!argument.starts_with("--conf")) arguments.push_back(std::move(argument));
  }
  return arguments;
}

void CheckSettings(const Config& config) {
  const auto shown = Describe(config);
  Require(shown.contains("job") && shown.contains("memory-budget"), "settings are shown");
  const absl::Status status = CheckConfig(config);
  if (!status.ok()) return RequireGoodError(status);
  Require(config.rank < config.world_size, "a rank is one of the world");
  Require(ParseBytes(config.segment_bytes).ok(), "sizes are read");
  const auto budget = ParseShare(config.memory_budget, uint64_t{1} << 40);
  Require(budget.ok(), "shares are read");
  const std::string folder = config.run_dir + "/" + config.job;
  Require(PathsOf(config).workload.starts_with(folder + "/rank-"),
          "sockets lie in the job's folder");
  Require(config.job.find('/') == std::string::npos && config.job != "..", "a job is one folder");
  if (const auto host = ParseHostPort(config.rendezvous); !host.ok()) {
    RequireGoodError(host.status());
  }
}

void FuzzConfig(std::string_view input) {
  const Variables variables(TakeUntil("\n---\n", input));
  std::vector<std::string> arguments = Arguments(TakeUntil("\n---\n", input));
  const UniqueFd file(::memfd_create("config", MFD_CLOEXEC));
  Require(file.valid() && ::write(file.get(), input.data(), input.size()) >= 0, "a file is made");
  if (!input.empty()) {
    arguments.insert(arguments.begin() + 1, "--config=/proc/self/fd/" + std::to_string(file.get()));
  }
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  const auto line = ParseCommandLine(static_cast<int>(arguments.size()), argv.data());
  if (!line.ok()) return RequireGoodError(line.status());
  if (line->verb == CommandLine::Verb::kPrint) {
    Require(!line->text.empty(), "what was asked for is printed");
    return;
  }
  CheckSettings(line->config);
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzConfig({reinterpret_cast<const char*>(data), size});
  return 0;
}

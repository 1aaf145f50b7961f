// Feeds arbitrary variables, flags and a configuration file to what the daemon makes
// its settings of. The input is three parts, divided by lines "---": variables
// (NAME=value), arguments, one on each line, and the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/posix.h"
#include "server/daemon/check_config.h"
#include "server/daemon/command_line.h"
#include "server/daemon/network.h"
#include "server/daemon/run_directory.h"
#include "server/daemon/sizes.h"
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

bool DaemonReads(std::string_view name) {
  return name.starts_with("CKPTD_") || name.starts_with("SLURM_") || name.ends_with("RANK") ||
         name.ends_with("WORLD_SIZE") || name == "MASTER_ADDR" || name == "XDG_RUNTIME_DIR";
}

// The environment, for as long as this lives: of the text, the variables that the
// daemon reads. Not by setenv(), which keeps every value that it has ever seen.
class Variables {
 public:
  explicit Variables(std::string_view text) : before_(environ) {
    while (!text.empty() && lines_.size() < kMaxLines) {
      std::string line(TakeUntil("\n", text));
      std::string_view rest = line;
      const std::string_view name = TakeUntil("=", rest);
      const bool whole = name.size() < line.size() && name.find('\0') == std::string_view::npos;
      if (whole && DaemonReads(name) && name != "CKPTD_CONFIG") lines_.push_back(std::move(line));
    }
    for (std::string& line : lines_) pointers_.push_back(line.data());
    pointers_.push_back(nullptr);
    environ = pointers_.data();
  }
  ~Variables() { environ = before_; }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  char** const before_;
  std::vector<std::string> lines_;
  std::vector<char*> pointers_;
};

// A file that holds `text`, always the same one.
std::string FileWith(std::string_view text) {
  static const UniqueFd file(::memfd_create("config", MFD_CLOEXEC));
  Require(file.valid() && ::ftruncate(file.get(), 0) == 0 &&
              ::pwrite(file.get(), text.data(), text.size(), 0) >= 0,
          "a file is made");
  return "/proc/self/fd/" + std::to_string(file.get());
}

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

void CheckSame(const absl::StatusOr<CommandLine>& one, const absl::StatusOr<CommandLine>& other) {
  Require(one.status() == other.status(), "a parser that was used gives the same errors");
  if (!one.ok()) return;
  Require(one->verb == other->verb && Describe(one->config) == Describe(other->config) &&
              one->launch.command == other->launch.command &&
              one->launch.nproc == other->launch.nproc,
          "a parser that was used says the same");
}

void FuzzConfig(std::string_view input) {
  // Of an empty environment. Making one costs most of what an input costs.
  static CommandLineParser parser = [] {
    const Variables none("");
    return CommandLineParser();
  }();
  static uint64_t inputs = 0;
  const Variables variables(TakeUntil("\n---\n", input));
  std::vector<std::string> arguments = Arguments(TakeUntil("\n---\n", input));
  if (!input.empty()) arguments.insert(arguments.begin() + 1, "--config=" + FileWith(input));
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  const auto argc = static_cast<int>(arguments.size());
  const auto line = parser.Parse(argc, argv.data());
  // What is tried on its own, and of many that follow each other a few.
  if (++inputs <= 64 || inputs % 1024 == 0) CheckSame(line, ParseCommandLine(argc, argv.data()));
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

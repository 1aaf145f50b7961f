// `ckptd launch`: checks what it was told, makes sure that it is the only one, and runs the
// launcher.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/file_lock.h"
#include "common/base/logging.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/access_settings.h"
#include "server/daemon/check_config.h"
#include "server/daemon/child.h"
#include "server/daemon/commands.h"
#include "server/daemon/detach.h"
#include "server/daemon/job_lock.h"
#include "server/daemon/launcher.h"
#include "server/daemon/network.h"
#include "server/daemon/peer_auth.h"
#include "server/daemon/run_directory.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr timespec kTick = {0, 100'000'000};

absl::Status Invalid(std::string message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, std::move(message));
}

// Flags are checked where they are read. These may come from variables.
absl::Status CheckSizes(const LaunchOptions& options) {
  if (options.nproc < 1 || options.nproc > kMaxProcesses) {
    return Invalid(
        fmt::format("launching {} daemons: a node has 1 to {}; give --nproc, or correct the variable "
                    "that it comes from (`ckptd launch --help` lists them)",
                    options.nproc, kMaxProcesses));
  }
  if (options.nnodes < 1 || options.nnodes > kMaxNodes) {
    return Invalid(
        fmt::format("launching on {} nodes: a job has 1 to {}; give --nnodes, or correct the variable "
                    "that it comes from (`ckptd launch --help` lists them)",
                    options.nnodes, kMaxNodes));
  }
  return absl::OkStatus();
}

// Checks the options of launch only. Errors: CONFIG_INVALID.
absl::Status CheckOptions(const Config& config, const LaunchOptions& options) {
  if (!std::isfinite(options.start_timeout)) {
    return Invalid("launching: --start-timeout is not a number of seconds; give it one");
  }
  CKPTD_RETURN_IF_ERROR(CheckSizes(options));
  if (config.keeper == kSystemdKeeper) {
    return Invalid(
        "launching with --keeper systemd: systemd keeps what the one process of a unit "
        "has; use a unit for each `ckptd run`, or leave it out");
  }
  if (options.node_rank >= options.nnodes) {
    return Invalid(
        fmt::format("launching on node {}: a job of {} node{} has no node of that "
                    "number, which counts from 0; give --node-rank and --nnodes "
                    "(`ckptd launch --help` lists the variables that are their defaults)",
                    options.node_rank, options.nnodes, options.nnodes == 1 ? "" : "s"));
  }
  if (options.nnodes > 1 && !options.rendezvous_given && config.rendezvous.rfind("127.", 0) == 0) {
    return Invalid(
        "launching on several nodes: say where rank 0 listens with --rendezvous "
        "HOST:PORT, the same on each node");
  }
  if (options.rendezvous_given && config.world_size > 1 && config.rendezvous.ends_with(":0")) {
    return Invalid(
        fmt::format("launching with --rendezvous {}: no other rank would know which port "
                    "that becomes; name one, or on one host leave the option out",
                    config.rendezvous));
  }
  if (!options.command.empty() && (options.detach || options.linger > 0)) {
    return Invalid(
        "launching with a command: its daemons end with it, so --detach and --linger "
        "have no use; leave them out, or leave the command out and start it after");
  }
  return absl::OkStatus();
}

// What a launcher in the background and its daemons print.
std::string LogOf(const Config& config, const LaunchOptions& options) {
  return fmt::format("{}/node-{}.log", PathsOf(config).directory, options.node_rank);
}

// Runs the launcher in this process.
int Serve(const Config& config, const LaunchOptions& options, Announcer& announcer) {
  absl::StatusOr<FileLock> lock = LockJob(config, options);
  if (IsHeld(lock.status()) && announcer.listens()) {
    announcer.Say(Announcer::State::kRunsAlready);
    return kExitUsage;
  }
  if (!lock.ok()) {
    PrintError(lock.status());
    return kExitUsage;
  }
  if (announcer.listens()) {
    if (const absl::Status said = announcer.LogTo(LogOf(config, options)); !said.ok()) {
      PrintError(said);
      return kExitFailed;
    }
  }
  return SuperviseDaemons(config, options, *std::move(lock), announcer);
}

std::vector<uint32_t> RanksThatDoNotListen(Config config, const LaunchOptions& options) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < options.nproc; ++i) {
    config.rank = options.node_rank * options.nproc + i;
    if (!ConnectUnix(PathsOf(config).workload, Clock::now()).ok()) ranks.push_back(config.rank);
  }
  return ranks;
}

// The last part of a log; empty if there is none.
std::string TextIn(const UniqueFd& log) {
  constexpr off_t kMostBytes = 1 << 20;
  struct stat info = {};
  if (!log.valid() || ::fstat(log.get(), &info) != 0) return "";
  std::string text(static_cast<size_t>(std::min(info.st_size, kMostBytes)), '\0');
  const ssize_t n = ::pread(log.get(), text.data(), text.size(),
                            info.st_size - static_cast<off_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

// A launcher that is told to stop has done so without a failure, but there are no daemons.
absl::Status StoppedBeforeReady(const Config& config) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                   fmt::format("launching job {}: its daemons were told to stop before they were "
                               "ready; start them again",
                               config.job));
}

// Another launcher runs the job, with other ranks than are asked for.
absl::Status OtherRanks(const Config& config, uint32_t running, uint32_t wanted) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("launching job {}: it runs already with {} daemons on this node, not "
                               "{}; end it with `ckptd stop`, or choose another --job",
                               config.job, running, wanted));
}

// Starts a launcher in the background. Nothing where another one runs the job already, else the
// exit code. What one that failed has said is shown.
std::optional<int> StartInBackground(const Config& config, const LaunchOptions& options) {
  const std::string log = LogOf(config, options);
  const absl::StatusOr<Background> launcher =
      RunInBackground([&](Announcer& announcer) { return Serve(config, options, announcer); });
  if (!launcher.ok()) {
    PrintError(launcher.status());
    return kExitFailed;
  }
  if (launcher->state == Background::State::kRunsAlready) return std::nullopt;
  if (launcher->state == Background::State::kEnded) {
    std::fputs(TextIn(launcher->log).c_str(), stderr);
    if (launcher->exit_code != kExitOk) return launcher->exit_code;
    PrintError(StoppedBeforeReady(config));
    return kExitFailed;
  }
  const std::string until =
      fmt::format(", until nobody has used them for {}", DurationText(options.linger));
  const std::string job = config.job == Config().job ? "" : " --job " + config.job;
  Log(LogLevel::kInfo,
      "the daemons of job {} are ready, and go on in the background{}; `ckptd stop{}` ends them, "
      "{} is "
      "their log",
      config.job, options.linger > 0 ? until : "", job, log);
  return kExitOk;
}

int Detach(const Config& config, const LaunchOptions& options) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(options.start_timeout);
  std::vector<uint32_t> silent;
  do {
    if (const auto code = StartInBackground(config, options)) return *code;
    const uint32_t running = HolderOfJob(config, options).nproc;
    if (running > 0 && running != options.nproc) {
      PrintError(OtherRanks(config, running, options.nproc));
      return kExitUsage;
    }
    silent = RanksThatDoNotListen(config, options);
    if (silent.empty()) {
      Log(LogLevel::kInfo, "the daemons of job {} run already", config.job);
      return kExitOk;
    }
    ::nanosleep(&kTick, nullptr);
  } while (Clock::now() < deadline);
  PrintError(
      MakeError(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing,
                fmt::format("waiting for the daemons of job {}, which another `ckptd launch` "
                            "starts: after {} s rank {} does not listen; look at its lines, or "
                            "choose another --job",
                            config.job, options.start_timeout, fmt::join(silent, ", "))));
  return kExitFailed;
}

void PrepareProcess(const Config& config) {
  // It holds the group key, which other processes of this user must not read through /proc.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  IgnoreSignalsOfWrites();
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config.log_level, level);
  InitLogging("launch", level);
}

}  // namespace

int LaunchCommand(const Config& given, const LaunchOptions& options) {
  // A lock or a pipe of the caller's would stay open as long as the daemons run.
  if (options.detach) ::close_range(STDERR_FILENO + 1, ~0U, 0);
  Config config = given;
  config.local_size = options.nproc;
  config.world_size = options.nproc * options.nnodes;
  config.rank = options.node_rank * options.nproc;
  PrepareProcess(config);
  if (const absl::Status said = CheckOptions(config, options); !said.ok()) {
    PrintError(said);
    return kExitUsage;
  }
  absl::StatusOr<HeldPort> held = HeldPort();
  if (options.nnodes == 1 && !options.rendezvous_given) {
    // The port is held as long as this process runs. Otherwise another rank could get it before
    // rank 0 is restarted.
    held = HoldFreePort();
    if (!held.ok()) {
      PrintError(held.status());
      return kExitFailed;
    }
    config.rendezvous = fmt::format("127.0.0.1:{}", held->port);
  }
  absl::Status checked = CheckConfig(config);
  // On a single host, the launcher makes the key.
  if (checked.ok() && (options.nnodes > 1 || HasPeerAuthSetting(config, ReadEnvironment))) {
    checked = ReadPeerSecurity(config, ReadEnvironment).status();
  }
  if (!checked.ok()) {
    PrintError(checked);
    return kExitUsage;
  }
  if (options.detach) return Detach(config, options);
  Announcer nobody;
  return Serve(config, options, nobody);
}

}  // namespace ckptd

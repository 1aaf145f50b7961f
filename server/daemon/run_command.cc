#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/child.h"
#include "server/daemon/commands.h"
#include "server/daemon/daemon.h"
#include "server/daemon/process_limits.h"
#include "server/daemon/repeated_lines.h"
#ifdef CKPTD_WITH_NCCL
#include "server/comm/nccl/environment.h"
#endif

namespace ckptd {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::sigaddset(&set, SIGINT);
  // Handles a closed terminal, or the end of a supervisor that had stopped us.
  if (HangupCounts()) ::sigaddset(&set, SIGHUP);
  return set;
}

// gRPC would write to stderr itself, and block if nobody reads it. It says some things with each
// call, such as that it gets no thread.
void LogFromGrpc(gpr_log_func_args* line) {
  static RepeatedLines repeated;
  const std::optional<uint64_t> left_out = repeated.Admit(line->message, std::chrono::steady_clock::now());
  if (!left_out.has_value()) return;
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR;
  const std::string more = *left_out > 0 ? fmt::format(" ({} times more before)", *left_out) : "";
  Log(error ? LogLevel::kError : LogLevel::kDebug, "gRPC: {}{}", line->message, more);
}

// NCCL's variables are made for the trainer. Called before the first thread, and before NCCL is
// opened.
void CleanEnvironment() {
#ifdef CKPTD_WITH_NCCL
  const NcclEnvironment clean = CleanNcclEnvironment(environ);
  ApplyNcclEnvironment(clean);
  Log(LogLevel::kDebug, "NCCL's environment: {}", clean.Text());
#endif
}

// Whether a restart cannot help: a mistake in the configuration, or something that this machine
// lacks. A supervisor gives up on kExitUsage.
bool IsPermanent(const absl::Status& status) {
  const std::string why = ReasonOf(status);
  return why == reason::kConfigInvalid || why == reason::kNoDevice || why == reason::kNoNccl;
}

// Waits until the daemon is to stop. Returns the exit code. A daemon whose GPU has failed ends by
// itself, so that its supervisor starts another one.
int WaitForTheEnd(Daemon& daemon, const sigset_t& signals) {
  constexpr timespec kPoll = {0, 500'000'000};
  constexpr int kPollsBetweenDrops = 8;
  bool failed = false;
  for (int poll = 1;; ++poll) {
    if (poll % kPollsBetweenDrops == 0) daemon.DropReleased();
    daemon.ShowUse();
    const int signal = ::sigtimedwait(&signals, nullptr, &kPoll);
    if (signal > 0) {
      Log(LogLevel::kInfo, "stopping: SIG{}", ::sigabbrev_np(signal));
      return kExitOk;
    }
    const absl::Status health = daemon.Health();
    if (health.ok()) continue;
    // Ends one poll later, so that ranks can be told of a load that failed.
    if (failed) {
      Log(LogLevel::kError, "stopping: {}", MessageOf(health));
      return kExitFailed;
    }
    failed = true;
  }
}

absl::Status CheckReadyFd(int fd) {
  if (fd < 0 || ::fcntl(fd, F_GETFD) >= 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("checking --ready-fd {}: no such descriptor is open; whoever starts "
                               "the daemon passes one end of a pipe on to it",
                               fd));
}

// What a process has once. Called before the first thread.
void PrepareProcess(const Config& config) {
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config.log_level, level);
  InitLogging(fmt::format("rank {}", config.rank), level);
  // Other processes of this user must not read shard memory through /proc.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  IgnoreSignalsOfWrites();
  ::signal(SIGIO, SIG_IGN);  // the ownership check takes leases on memfds
  RaiseFileLimit();
  SayWhenMemoryEnds();
  CleanEnvironment();
  // Tables of many tensors are large for a moment. By default glibc raises this limit to the
  // largest freed block, and would keep such memory.
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
}

}  // namespace

void PrintError(const absl::Status& status) {
  PlainLine(fmt::format("ckptd: {} [{}]", MessageOf(status), ReasonOf(status)));
}

int RunCommand(const Config& config) {
  ::prctl(PR_SET_NAME, "ckptd");  // `launch` starts us by another path
  // Checked before anything else is opened, because a new descriptor could get its number.
  if (const absl::Status status = CheckReadyFd(config.ready_fd); !status.ok()) {
    PrintError(status);
    return kExitUsage;
  }
  PrepareProcess(config);
  if (const absl::Status limits = CheckProcessLimits(); !limits.ok()) {
    PrintError(limits);
    return kExitUsage;
  }
  // Blocked before the first thread starts, so that only this thread gets them.
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // One call more than shutdowns: the last shutdown waits for gRPC's own poller, which may sleep
  // for ten seconds after a peer was lost. The process ends instead.
  ::gpr_set_log_function(LogFromGrpc);
  ::grpc_init();
  auto daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    PrintError(daemon.status());
    return IsPermanent(daemon.status()) ? kExitUsage : kExitFailed;
  }
  std::atomic<bool> stopping = false;
  std::thread announcer([&] { (*daemon)->AnnounceReady([&] { return stopping.load(); }); });
  const int status = WaitForTheEnd(**daemon, signals);
  stopping = true;
  announcer.join();
  daemon->reset();
  Log(LogLevel::kInfo, "stopped");
  return status;
}

}  // namespace ckptd

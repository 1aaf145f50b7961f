#include "server/daemon/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/logging.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/child.h"
#include "server/daemon/group_key.h"
#include "server/daemon/health_port.h"
#include "server/daemon/job_lock.h"
#include "server/daemon/keeper_process.h"
#include "server/daemon/metrics_service.h"
#include "server/daemon/network.h"
#include "server/daemon/peer_auth.h"
#include "server/daemon/run_directory.h"
#include "server/daemon/service_manager.h"
#include "server/rpc/host_health.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kFirstBackoff{200};
constexpr std::chrono::seconds kLastBackoff{10};
constexpr std::chrono::minutes kPeace{1};
constexpr std::chrono::seconds kStopPatience{10};
constexpr std::chrono::seconds kOrphanPatience{5};
constexpr std::chrono::milliseconds kKeeperPatience{1000};
// How long a keeper waits for daemons: of a launch that was killed, and where it was asked to stay
// until programs are replaced on every host.
constexpr std::chrono::minutes kKeptForANextLaunch{1};
constexpr std::chrono::minutes kKeptForAnUpgrade{15};
constexpr timespec kTick = {0, 100'000'000};
constexpr int kStopsThatKill = 3;  // the third signal kills a command that does not end

// The program of this process as it was started. An upgrade replaces the file, and a daemon of
// another version could not join the running ones.
constexpr char kOwnProgram[] = "/proc/self/exe";

// The name that lists of processes show.
std::string OwnName() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink(kOwnProgram, error);
  return error ? kOwnProgram : path.string();
}

// One daemon of this node.
struct Slot {
  uint32_t rank = 0;
  pid_t pid = -1;
  bool joined = false;  // the group is complete
  bool ready = false;
  bool was_ready = false;  // has been ready once, so its settings are fine
  UniqueFd ready_pipe;
  Clock::time_point started;
  Clock::time_point next_start;
  std::chrono::milliseconds backoff = kFirstBackoff;
  uint32_t restarts = 0;  // since the last minute without one
  bool was_started = false;
  bool given_up = false;            // reported once, while a command runs
  std::pair<time_t, long> touched;  // when its daemon was last in use, by the file system's clock
};

// What daemons are told. If it names no keeper, this launch starts one, of this node.
Config WithKeeper(Config config, const LaunchOptions& options) {
  if (config.keeper.empty()) config.keeper = KeeperSocketOf(config, options.node_rank);
  return config;
}

class Launcher {
 public:
  Launcher(const Config& config, const LaunchOptions& options, FileLock lock, Announcer& announcer)
      : config_(WithKeeper(config, options)),
        options_(options),
        announcer_(announcer),
        lock_(std::move(lock)),
        keeper_(config.keeper.empty() ? config_.keeper : "", kOwnProgram, OwnName(),
                options_.keep ? kKeptForAnUpgrade : kKeptForANextLaunch) {
    // A new key is enough, because restarted daemons get it from this process as well.
    if (!HasPeerAuthSetting(config_, ReadEnvironment)) {
      group_key_[kGroupKeyVariable] = NewGroupKey();
    }
    for (uint32_t i = 0; i < options_.nproc; ++i) {
      Slot slot;
      slot.rank = options_.node_rank * options_.nproc + i;
      slots_.push_back(std::move(slot));
    }
    start_deadline_ = Clock::now() + std::chrono::milliseconds(
                                         static_cast<int64_t>(options_.start_timeout * 1000));
    ::sigemptyset(&signals_);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) ::sigaddset(&signals_, signal);
    if (HangupCounts()) ::sigaddset(&signals_, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
    AdoptOrphans();
  }

  int Run() {
    for (const absl::Status& served : {ServeHealth(), ServeMetrics()}) {
      if (served.ok()) continue;
      PrintError(served);
      return kExitUsage;
    }
    while (!exit_code_.has_value()) {
      keeper_.Ensure(kKeeperPatience);
      StartDue();
      ReadReady();
      StartCommandWhenReady();
      CheckStart();
      CheckRunDirectory();
      if (exit_code_.has_value()) break;
      const int signal = ::sigtimedwait(&signals_, nullptr, &kTick);
      if (signal > 0 && signal != SIGCHLD) OnStop(signal);
      Reap();
      CheckLinger();
    }
    StopDaemons();
    if (!options_.keep) keeper_.End();
    if (health_service_ != nullptr) health_service_->Stop();
    return *exit_code_;
  }

 private:
  // Starts threads, so signals must be blocked before.
  absl::Status ServeHealth() {
    CKPTD_ASSIGN_OR_RETURN(const std::string address, ListenAddress(config_.health_port));
    if (address.empty()) return absl::OkStatus();
    std::vector<std::string> sockets;
    for (const Slot& slot : slots_) sockets.push_back(PathsOf(ConfigOf(slot)).workload);
    health_service_ = std::make_unique<HealthServiceImpl>(
        [daemons = std::make_shared<HostHealth>(sockets)](const std::string& service) {
          return daemons->Ask(service);
        });
    CKPTD_ASSIGN_OR_RETURN(health_server_, StartHealthServer(config_, *health_service_));
    return absl::OkStatus();
  }

  // The same.
  absl::Status ServeMetrics() {
    std::vector<uint32_t> ranks;
    for (const Slot& slot : slots_) ranks.push_back(slot.rank);
    CKPTD_ASSIGN_OR_RETURN(metrics_port_, ServeHostMetrics(config_, std::move(ranks)));
    return absl::OkStatus();
  }

  Config ConfigOf(const Slot& slot) const {
    Config config = config_;
    config.rank = slot.rank;
    config.health_port = "0";  // this process serves it
    if (config.metrics != "0") config.metrics = kMetricsSocket;  // where it finds them
    return config;
  }

  void StartDue() {
    for (Slot& slot : slots_) {
      if (slot.pid < 0 && Clock::now() >= slot.next_start) StartDaemon(slot);
    }
  }

  void StartDaemon(Slot& slot) {
    const absl::Status started = TryToStart(slot);
    if (started.ok()) return;
    // A host without free processes or descriptors may have some later.
    if (!slot.was_started) return Fail(started);
    Retry(slot, "could not be started: " + MessageOf(started));
  }

  absl::Status TryToStart(Slot& slot) {
    int fds[2] = {-1, -1};
    if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
    slot.ready_pipe = UniqueFd(fds[0]);
    ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
    const UniqueFd writer(fds[1]);
    ChildOptions child;
    child.program = kOwnProgram;
    child.arguments = {own_name_, "run"};
    for (const auto& [key, value] : Describe(ConfigOf(slot))) {
      if (!value.empty()) child.arguments.push_back(fmt::format("--{}={}", key, value));
    }
    child.arguments.push_back(fmt::format("--ready-fd={}", writer.get()));
    child.environment = group_key_;
    child.own_group = true;
    child.keep_fd = writer.get();
    CKPTD_ASSIGN_OR_RETURN(slot.pid, StartChild(child));
    slot.was_started = true;
    slot.joined = slot.ready = false;
    slot.started = Clock::now();
    return absl::OkStatus();
  }

  void ReadReady() {
    for (Slot& slot : slots_) {
      char said = 0;
      while (!slot.ready && slot.ready_pipe.valid() &&
             ::read(slot.ready_pipe.get(), &said, 1) == 1) {
        slot.joined = slot.was_ready = true;
        slot.ready = said == '1';
        if (said == '0' && !announced_) Fail(NotLoaded(slot));
      }
    }
  }

  absl::Status NotLoaded(const Slot& slot) const {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kLoadFailed,
        fmt::format("starting rank {} --ready-when loaded: {} could not be loaded; see "
                    "its line above, or leave --ready-when out",
                    slot.rank, config_.load));
  }

  bool AllReady() const {
    return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.ready; });
  }

  void StartCommandWhenReady() {
    if (announced_ || !AllReady()) return;
    announced_ = true;
    const std::string address =
        fmt::format("unix://{}/{}/rank-{{rank}}.sock", config_.run_dir, config_.job);
    Log(LogLevel::kInfo, "{} daemons are ready: {}", slots_.size(), address);
    announcer_.Say(Announcer::State::kReady);
    NotifyServiceManager(fmt::format("READY=1\nSTATUS={} daemons are ready", slots_.size()));
    last_use_ = Clock::now();
    if (options_.command.empty()) return;
    ChildOptions child;
    child.arguments = options_.command;
    child.environment = {
        {"CKPTD_ADDRESS", address}, {"CKPTD_RUN_DIR", config_.run_dir}, {"CKPTD_JOB", config_.job}};
    auto pid = StartChild(child);
    if (!pid.ok()) return Fail(pid.status());
    command_ = *pid;
  }

  void CheckStart() {
    if (announced_ || Clock::now() < start_deadline_) return;
    std::vector<uint32_t> late;
    for (const Slot& slot : slots_) {
      if (!slot.joined) late.push_back(slot.rank);
    }
    if (late.empty()) return;  // a load has a deadline of its own
    Fail(MakeError(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing,
                   fmt::format("starting the group: after {} s the daemons of rank {} still wait "
                               "for the group to be complete; look at their lines above, or give "
                               "--start-timeout more seconds",
                               options_.start_timeout, fmt::join(late, ", "))));
  }

  // Daemons in use touch their lock files. Only changes are looked at: clocks may be set.
  void CheckLinger() {
    if (options_.linger == 0 || !announced_ || exit_code_.has_value()) return;
    for (Slot& slot : slots_) {
      Config config = config_;
      config.rank = slot.rank;
      struct stat lock = {};
      if (::stat(PathsOf(config).lock.c_str(), &lock) != 0) continue;
      const auto touched = std::pair(lock.st_mtim.tv_sec, lock.st_mtim.tv_nsec);
      if (std::exchange(slot.touched, touched) != touched) last_use_ = Clock::now();
    }
    if (Clock::now() - last_use_ < std::chrono::duration<double>(options_.linger)) return;
    Log(LogLevel::kInfo, "nobody has used the daemons for {}: stopping them",
        DurationText(options_.linger));
    exit_code_ = kExitOk;
  }

  // Without its files nobody finds the daemons, and another launch would start beside them.
  void CheckRunDirectory() {
    if (lock_.IsThere() || exit_code_.has_value()) return;
    if (command_ < 0) return Fail(Removed("launch again"));
    // Trainers that have attached need no daemon. Nobody else may start daemons meanwhile.
    if (!std::exchange(removed_, true)) {
      PrintError(Removed("the command goes on, but what it starts again finds no daemon"));
    }
    if (absl::StatusOr<FileLock> lock = LockJob(config_, options_); lock.ok()) lock_ = *std::move(lock);
  }

  absl::Status Removed(std::string_view what_now) const {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable,
                     fmt::format("keeping the daemons of job {} running: {} was removed or replaced, so "
                                 "nobody finds them any more; {}, and see what removes files there, or "
                                 "choose another --run-dir",
                                 config_.job, PathsOf(config_).directory, what_now));
  }

  void OnStop(int signal) {
    if (command_ < 0) {
      exit_code_ = options_.command.empty() ? kExitOk : 128 + signal;
      return;
    }
    // The terminal has sent SIGINT to the command as well, so the command ends by itself.
    const int passed_on = ++stops_ >= kStopsThatKill        ? SIGKILL
                          : signal == SIGINT && stops_ == 1 ? SIGINT
                                                            : SIGTERM;
    ::kill(command_, passed_on);
    Log(LogLevel::kInfo, "waiting for the command (process {}) to end by SIG{}; signal {} kills it",
        command_, ::sigabbrev_np(passed_on), kStopsThatKill);
  }

  void Reap() {
    int status = 0;
    for (pid_t pid = ::waitpid(-1, &status, WNOHANG); pid > 0;
         pid = ::waitpid(-1, &status, WNOHANG)) {
      if (pid == command_) {
        exit_code_ = ExitCodeOf(status);
        end_orphans_ = stops_ > 0 || WIFSIGNALED(status);
        command_ = -1;
        Log(LogLevel::kInfo, "the command ended: {}", DescribeExit(status));
        continue;
      }
      for (Slot& slot : slots_) {
        if (slot.pid == pid) OnDaemonEnd(slot, status);
      }
    }
  }

  void OnDaemonEnd(Slot& slot, int status) {
    slot.pid = -1;
    slot.joined = slot.ready = announced_ && slot.ready;
    if (Clock::now() - slot.started > kPeace) {
      slot.restarts = 0;
      slot.backoff = kFirstBackoff;
      slot.given_up = false;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage && !slot.was_ready) {
      return Fail(MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                            fmt::format("starting rank {}: it cannot run as it is configured; see "
                                        "its line above",
                                        slot.rank)),
                  kExitUsage);
    }
    Retry(slot, "ended with " + DescribeExit(status));
  }

  // Restarts the slot's daemon. `what` happened to it.
  void Retry(Slot& slot, const std::string& what) {
    if (++slot.restarts > options_.max_restarts) {
      const absl::Status lost = GivenUp(slot, what);
      if (command_ < 0) return Fail(lost);
      // Trainers that have attached need no daemon, so the command may go on and its result
      // counts.
      if (!std::exchange(slot.given_up, true)) PrintError(lost);
      slot.backoff = kLastBackoff;
    }
    Log(LogLevel::kWarn, "rank {} {}, restart in {} ms", slot.rank, what, slot.backoff.count());
    slot.next_start = Clock::now() + slot.backoff;
    slot.backoff = std::min<std::chrono::milliseconds>(slot.backoff * 2, kLastBackoff);
  }

  absl::Status GivenUp(const Slot& slot, const std::string& what) const {
    return MakeError(
        absl::StatusCode::kAborted, reason::kRankLost,
        fmt::format("keeping rank {} running: restarted {} times in a row, and it {} again; "
                    "look at its lines above{}",
                    slot.rank, slot.restarts - 1, what,
                    command_ < 0 ? ""
                                 : "; the command goes on without that daemon, which "
                                   "is still tried again"));
  }

  // A service manager need not start again what ends with kExitUsage.
  void Fail(const absl::Status& status, int exit_code = kExitFailed) {
    PrintError(status);
    if (!exit_code_.has_value()) exit_code_ = exit_code;
  }

  void StopDaemons() {
    NotifyServiceManager("STOPPING=1");
    if (command_ > 0) EndChildren({command_}, kStopPatience);
    std::vector<pid_t> left;
    for (const Slot& slot : slots_) {
      if (slot.pid > 0) left.push_back(slot.pid);
    }
    if (command_ > 0 || end_orphans_) EndCommandsOrphans(left);
    const std::map<pid_t, int> ends = EndChildren(left, kStopPatience);
    for (const Slot& slot : slots_) {
      if (const auto end = ends.find(slot.pid); end != ends.end()) {
        OnLastEnd(slot, end->second);
      } else if (slot.pid > 0) {
        Log(LogLevel::kWarn,
            "rank {} (pid {}) has not ended after SIGKILL, as if its storage hangs; look at its "
            "state (ps -o stat,wchan)",
            slot.rank, slot.pid);
        if (options_.command.empty() && exit_code_ == kExitOk) exit_code_ = kExitFailed;
      }
    }
  }

  // A command that ends by itself may leave processes behind. One that was ended leaves those that it
  // did not get to end, such as workers of a torchrun that was killed.
  void EndCommandsOrphans(std::vector<pid_t> ours) {
    ours.insert(ours.end(), keeper_.started().begin(), keeper_.started().end());
    EndOrphans(ours, kOrphanPatience);
  }

  // Called for a daemon that was told to stop.
  void OnLastEnd(const Slot& slot, int status) {
    // A daemon that gets SIGTERM before it handles signals is ended by the signal.
    if (status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM)) return;
    Log(LogLevel::kWarn, "rank {} was told to stop and ended with {}; look at its lines above",
        slot.rank, DescribeExit(status));
    // The result of a command counts more than that of a daemon.
    if (options_.command.empty() && exit_code_ == kExitOk) exit_code_ = kExitFailed;
  }

  const Config config_;
  const LaunchOptions& options_;
  Announcer& announcer_;
  FileLock lock_;  // of the job
  KeeperProcess keeper_;
  Clock::time_point last_use_;
  const std::string own_name_ = OwnName();
  std::map<std::string, std::string> group_key_;  // for the daemons' environment
  std::vector<Slot> slots_;
  sigset_t signals_ = {};
  Clock::time_point start_deadline_;
  std::unique_ptr<HealthServiceImpl> health_service_;  // null: no --health-port
  std::unique_ptr<GrpcServer> health_server_;
  std::unique_ptr<MetricsPort> metrics_port_;  // null: no --metrics
  bool announced_ = false;
  bool removed_ = false;      // the run directory; reported once
  bool end_orphans_ = false;  // the command did not end by itself
  int stops_ = 0;  // how many signals have asked this process to stop
  pid_t command_ = -1;
  std::optional<int> exit_code_;
};

}  // namespace

std::string DurationText(double seconds) {
  const bool minutes = seconds >= 60 && std::fmod(seconds, 60) == 0;
  return minutes ? fmt::format("{:g} min", seconds / 60) : fmt::format("{:g} s", seconds);
}

int SuperviseDaemons(const Config& config, const LaunchOptions& options, FileLock lock,
                     Announcer& announcer) {
  return Launcher(config, options, std::move(lock), announcer).Run();
}

}  // namespace ckptd

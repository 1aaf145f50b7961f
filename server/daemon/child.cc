#include "server/daemon/child.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr int kSignalsOfWrites[] = {SIGPIPE, SIGXFSZ};

// Runs between fork and exec, so it may make only async-signal-safe calls. Never returns.
[[noreturn]] void BecomeChild(const ChildOptions& options, char* const* arguments,
                              char* const* environment, int error_pipe, pid_t parent) {
  if (options.outlives) {
    ::setsid();
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) ::dup2(null, fd);
    // A lock or a pipe of the caller's would stay open as long as the child runs.
    ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  } else {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  }
  if (options.own_group) ::setpgid(0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : kSignalsOfWrites) ::signal(signal, SIG_DFL);
  if (options.keep_fd >= 0) ::fcntl(options.keep_fd, F_SETFD, 0);
  ::execvpe(options.program.empty() ? arguments[0] : options.program.c_str(), arguments, environment);
  const int error = errno;
  const ssize_t ignored = ::write(error_pipe, &error, sizeof(error));
  (void)ignored;
  ::_exit(127);
}

std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> merged;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string entry(*one);
    if (added.count(entry.substr(0, entry.find('='))) == 0) merged.push_back(entry);
  }
  for (const auto& [key, value] : added) merged.push_back(key + "=" + value);
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The processes whose parent this one is. Empty without /proc.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    const pid_t pid = std::atoi(at->path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(at->path() / "stat");
    std::string line;
    std::getline(file, line);
    // Behind the program's name, which may have spaces and brackets: state, parent.
    std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
    char state = 0;
    pid_t parent = 0;
    if (rest >> state >> parent && parent == ::getpid()) children.push_back(pid);
  }
  return children;
}

}  // namespace

void IgnoreSignalsOfWrites() {
  for (const int signal : kSignalsOfWrites) ::signal(signal, SIG_IGN);
}

void RaiseFileLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<pid_t> StartChild(const ChildOptions& options) {
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = MergedEnvironment(options.environment);
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment);
  int pipe_fds[2] = {-1, -1};
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  const UniqueFd reader(pipe_fds[0]);
  UniqueFd writer(pipe_fds[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "starting " + options.arguments[0]);
  if (pid == 0) {
    BecomeChild(options, argument_pointers.data(), environment_pointers.data(), writer.get(),
                parent);
  }
  writer.Reset();
  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(reader.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == 0) return pid;  // exec has closed the pipe
  ::waitpid(pid, nullptr, 0);
  return MakeError(absl::StatusCode::kNotFound, reason::kInvalidRequest,
                   fmt::format("starting {}: {}; check the command", options.arguments[0],
                               std::strerror(error)));
}

std::map<pid_t, int> EndChildren(const std::vector<pid_t>& pids,
                                 std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  constexpr timespec kTick = {0, 100'000'000};
  // The kernel does not end a process that waits for storage without an answer.
  constexpr std::chrono::seconds kKillPatience{5};
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  std::map<pid_t, int> ends;
  // True if there is nothing more to wait for.
  const auto ended = [&ends](pid_t pid) {
    int status = 0;
    const pid_t found = ::waitpid(pid, &status, WNOHANG);
    if (found == pid) ends[pid] = status;
    return found != 0;
  };
  std::vector<pid_t> left = pids;
  const auto await = [&](Clock::time_point deadline) {
    while (true) {
      left.erase(std::remove_if(left.begin(), left.end(), ended), left.end());
      if (left.empty() || Clock::now() > deadline) return;
      ::sigtimedwait(&children, nullptr, &kTick);
    }
  };
  for (const pid_t pid : left) ::kill(pid, SIGTERM);
  await(Clock::now() + patience);
  for (const pid_t pid : left) ::kill(pid, SIGKILL);
  await(Clock::now() + kKillPatience);
  return ends;
}

void AdoptOrphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

void EndOrphans(const std::vector<pid_t>& kept, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  constexpr timespec kTick = {0, 20'000'000};
  constexpr std::chrono::seconds kKillPatience{5};
  const Clock::time_point kill_at = Clock::now() + patience;
  std::set<pid_t> told;
  while (Clock::now() < kill_at + kKillPatience) {
    bool left = false;
    for (const pid_t pid : Children()) {
      if (std::find(kept.begin(), kept.end(), pid) != kept.end()) continue;
      if (::waitpid(pid, nullptr, WNOHANG) != 0) continue;
      left = true;
      if (Clock::now() >= kill_at) {
        ::kill(pid, SIGKILL);
      } else if (told.insert(pid).second) {
        ::kill(pid, SIGTERM);
      }
    }
    if (!left) return;
    ::nanosleep(&kTick, nullptr);
  }
}

bool HangupCounts() {
  struct sigaction hangup = {};
  return ::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN;
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string DescribeExit(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return fmt::format("exit code {}", WEXITSTATUS(wait_status));
  return fmt::format("signal {} ({})", WTERMSIG(wait_status), ::strsignal(WTERMSIG(wait_status)));
}

}  // namespace ckptd

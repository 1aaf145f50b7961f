#include "server/daemon/detach.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/daemon/child.h"

namespace ckptd {
namespace {

constexpr timespec kTick = {0, 50'000'000};
constexpr std::chrono::seconds kSendPatience{1};

// False while `reader` has nothing and the other side is open.
bool CanRead(const UniqueFd& reader) {
  pollfd ready = {reader.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
}

// What the process in the background says next; nothing once it has ended. Takes its log.
std::optional<Announcer::State> Listen(int reader, UniqueFd& log) {
  auto said = RecvWithFds(reader, 1, 1, std::chrono::steady_clock::now());
  if (!said.ok() || said->bytes.empty()) return std::nullopt;
  if (!said->fds.empty()) log = std::move(said->fds.front());
  return static_cast<Announcer::State>(said->bytes.front());
}

// Never returns.
void ServeInBackground(UniqueFd writer, const std::function<int(Announcer&)>& serve) {
  ::setsid();
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
  Announcer announcer(std::move(writer));
  const int code = serve(announcer);
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

absl::Status Announcer::LogTo(const std::string& path) {
  const std::string old = path + ".old";
  if (::rename(path.c_str(), old.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(errno, "renaming " + path);
  const UniqueFd file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "creating " + path);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::dup2(file.get(), output) < 0) return ErrnoStatus(errno, "writing to " + path);
  }
  ReopenLog();
  const auto said = static_cast<std::byte>(State::kLogs);
  return SendWithFds(writer_.get(), {&said, 1}, std::vector<int>{file.get()},
                     std::chrono::steady_clock::now() + kSendPatience);
}

void Announcer::Say(State state) {
  if (!writer_.valid()) return;
  const char said = static_cast<char>(state);
  if (::write(writer_.get(), &said, 1) != 1)
    Log(LogLevel::kWarn, "nobody waits for these daemons any more");
  writer_.Reset();
}

absl::StatusOr<Background> RunInBackground(const std::function<int(Announcer&)>& serve) {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus(errno, "making a pair of sockets");
  }
  const UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaddset(&signals, signal);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  Background process;
  process.pid = ::fork();
  if (process.pid < 0) return ErrnoStatus(errno, "starting a process");
  if (process.pid == 0) {
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ServeInBackground(std::move(writer), serve);
  }
  writer.Reset();
  // A signal is the user's, who wants no daemons any more. The launcher ends them, and then itself.
  std::optional<Announcer::State> said;
  do {
    while (!CanRead(reader)) {
      if (::sigtimedwait(&signals, nullptr, &kTick) > 0) ::kill(process.pid, SIGTERM);
    }
    said = Listen(reader.get(), process.log);
  } while (said == Announcer::State::kLogs);
  if (said == Announcer::State::kReady) {
    process.state = Background::State::kReady;
    return process;
  }
  int status = 0;
  while (::waitpid(process.pid, &status, 0) < 0 && errno == EINTR) continue;
  process.exit_code = ExitCodeOf(status);
  if (said == Announcer::State::kRunsAlready) process.state = Background::State::kRunsAlready;
  return process;
}

}  // namespace ckptd

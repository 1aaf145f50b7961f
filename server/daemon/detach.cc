#include "server/daemon/detach.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/daemon/child.h"

namespace ckptd {
namespace {

constexpr timespec kTick = {0, 50'000'000};

// False while `reader` has nothing and the other side is open.
bool CanRead(const UniqueFd& reader) {
  pollfd ready = {reader.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
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
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "creating " + path);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::dup2(file.get(), output) < 0) return ErrnoStatus(errno, "writing to " + path);
  }
  ReopenLog();
  return absl::OkStatus();
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
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
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
  while (!CanRead(reader)) {
    if (::sigtimedwait(&signals, nullptr, &kTick) > 0) ::kill(process.pid, SIGTERM);
  }
  char said = 0;
  if (::read(reader.get(), &said, 1) == 1 && said == static_cast<char>(Announcer::State::kReady)) {
    process.state = Background::State::kReady;
    return process;
  }
  int status = 0;
  while (::waitpid(process.pid, &status, 0) < 0 && errno == EINTR) continue;
  process.exit_code = ExitCodeOf(status);
  if (said == static_cast<char>(Announcer::State::kRunsAlready))
    process.state = Background::State::kRunsAlready;
  return process;
}

}  // namespace ckptd

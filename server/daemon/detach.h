// `ckptd launch --detach`: a launcher that goes on in the background, in a session of its own.
#ifndef CKPTD_SERVER_DAEMON_DETACH_H_
#define CKPTD_SERVER_DAEMON_DETACH_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// How a process in the background tells the one that the user started what became of it.
class Announcer {
 public:
  enum class State : char { kLogs = 'l', kReady = '1', kRunsAlready = 'r' };

  Announcer() = default;  // nobody listens
  explicit Announcer(UniqueFd writer) : writer_(std::move(writer)) {}

  // What this process and its children print goes to a new file at `path` from now on. One of an
  // earlier process stays as `path`.old. The one that listens gets the file.
  absl::Status LogTo(const std::string& path);
  void Say(State state);
  bool listens() const { return writer_.valid(); }

 private:
  UniqueFd writer_;
};

// What became of a process in the background.
struct Background {
  enum class State : uint8_t { kReady, kRunsAlready, kEnded };
  State state = State::kEnded;
  pid_t pid = -1;
  int exit_code = 0;  // kEnded
  UniqueFd log;       // of Announcer::LogTo; the file's name may be another launcher's by now
};

// Runs `serve` in a new process without a terminal, which ends with its result. Returns once that
// has announced something or has ended; it goes on after kReady alone. SIGINT and SIGTERM end it
// until then. Call it before the first thread starts. Errors: ResourceExhausted.
absl::StatusOr<Background> RunInBackground(const std::function<int(Announcer&)>& serve);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_DETACH_H_

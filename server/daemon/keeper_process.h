// The keeper of `ckptd launch`. Main thread only.
#ifndef CKPTD_SERVER_DAEMON_KEEPER_PROCESS_H_
#define CKPTD_SERVER_DAEMON_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>
#include <utility>

#include "common/base/posix.h"

namespace ckptd {

class KeeperProcess {
 public:
  // `program` is run with `name` as its first argument. Empty `socket`: there is no keeper. It ends
  // once nobody was connected to it for `linger`.
  KeeperProcess(std::string socket, std::string program, std::string name,
                std::chrono::seconds linger)
      : socket_(std::move(socket)),
        program_(std::move(program)),
        name_(std::move(name)),
        linger_(linger) {}

  // Takes the keeper that is there, also one that an earlier launch has left, or starts one. If it
  // has ended, starts another one. Cheap while it runs, so it is called often. `patience`: for the
  // new one to listen. What fails is logged, and tried again later.
  void Ensure(std::chrono::milliseconds patience);
  // Ends it, and with it what it holds.
  void End();
  // The processes that were started here.
  const std::vector<pid_t>& started() const { return started_; }

 private:
  bool Connected() const;
  void Start();

  const std::string socket_;
  const std::string program_;
  const std::string name_;
  const std::chrono::seconds linger_;
  // A connection without a hello: open for as long as the keeper runs. While it is, the keeper
  // does not end for want of daemons.
  UniqueFd connection_;
  std::chrono::steady_clock::time_point next_start_;
  std::vector<pid_t> started_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_KEEPER_PROCESS_H_

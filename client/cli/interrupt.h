// Handles Ctrl-C while a call waits.
#ifndef CKPTD_CLIENT_CLI_INTERRUPT_H_
#define CKPTD_CLIENT_CLI_INTERRUPT_H_

#include <thread>

#include "client/cpp/cancel.h"
#include "common/base/posix.h"

namespace ckptd::cli {

// While it exists, SIGINT cancels the token. At the second SIGINT, or if nothing listens to the
// token, the process ends at once with exit code 130. Make it before any other thread, because
// threads inherit the signal mask.
class InterruptWatcher {
 public:
  explicit InterruptWatcher(CancelToken& token);
  ~InterruptWatcher();
  InterruptWatcher(const InterruptWatcher&) = delete;
  InterruptWatcher& operator=(const InterruptWatcher&) = delete;

 private:
  void Run();

  CancelToken& token_;
  UniqueFd signals_;
  UniqueFd stop_;
  std::thread thread_;
};

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_INTERRUPT_H_

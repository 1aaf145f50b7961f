#include "client/cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "client/cli/exit_codes.h"

namespace ckptd::cli {

InterruptWatcher::InterruptWatcher(CancelToken& token) : token_(token) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  UniqueFd signals(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  // Without descriptors, Ctrl-C ends the process as usual.
  if (!stop.valid() || !signals.valid()) return;
  ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  stop_ = std::move(stop);
  signals_ = std::move(signals);
  thread_ = std::thread([this] { Run(); });
}

InterruptWatcher::~InterruptWatcher() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof(one)) < 0) {
  }
  thread_.join();
}

void InterruptWatcher::Run() {
  bool interrupted = false;
  for (;;) {
    std::array<pollfd, 2> entries = {pollfd{signals_.get(), POLLIN, 0},
                                     pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[1].revents != 0) return;
    signalfd_siginfo info = {};
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    if (interrupted || !token_.Cancel()) ::_exit(kExitInterrupted);
    interrupted = true;
  }
}

}  // namespace ckptd::cli

#include "server/transfer/sigbus_guard.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace ckptd {
namespace {

struct Guard {
  sigjmp_buf resume;
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// Constant-initialised, so that the handler may use it in any thread.
thread_local constinit Guard* current_guard = nullptr;
struct sigaction previous_action = {};

// Passes the signal on as if our handler did not exist.
void PassOn(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
    return;
  }
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
    return;
  }
  // When the handler returns, the faulting access is repeated, now with the default action. A
  // signal sent by kill() is not repeated, so it is sent again.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGBUS, &action, nullptr);
  if (info->si_code <= 0) ::raise(SIGBUS);
}

void OnSigbus(int signal, siginfo_t* info, void* context) {
  Guard* guard = current_guard;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (guard != nullptr && info->si_code > 0 && address >= guard->begin && address < guard->end) {
    // Restores the signal mask, as a return from the handler would. This costs nothing unless a
    // fault occurs; a sigsetjmp that saves the mask is a system call per use.
    ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(guard->resume, 1);
  }
  PassOn(signal, info, context);
}

// Not inlined, because setjmp may spoil the caller's local variables.
[[gnu::noinline]] bool RunUnderGuard(Guard& guard, absl::FunctionRef<void()> body) {
  if (sigsetjmp(guard.resume, 0) != 0) return false;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  body();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return true;
}

}  // namespace

bool SigbusGuardInForce() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnSigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, nullptr, &previous_action);
    ::sigaction(SIGBUS, &action, nullptr);
  });
  struct sigaction now = {};
  return ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == OnSigbus;
}

void UnblockSigbus() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGBUS);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool RunGuarded(std::span<const std::byte> mapped, absl::FunctionRef<void()> body) {
  // Depending on the kernel, the address of a fault is exact or that of its page.
  constexpr uintptr_t kPage = 4096;
  Guard guard;
  guard.begin = reinterpret_cast<uintptr_t>(mapped.data()) / kPage * kPage;
  guard.end = reinterpret_cast<uintptr_t>(mapped.data()) + mapped.size();
  current_guard = &guard;
  const bool whole = RunUnderGuard(guard, body);
  current_guard = nullptr;
  return whole;
}

}  // namespace ckptd

#include "server/transfer/threads.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// More than these only fight over memory bandwidth.
constexpr unsigned kMaxDefaultThreads = 32;

}  // namespace

unsigned DefaultThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  const unsigned cores =
      known ? static_cast<unsigned>(CPU_COUNT(&set)) : std::thread::hardware_concurrency();
  return std::clamp(cores, 2U, kMaxDefaultThreads);
}

absl::Status RunOnThreads(unsigned count, absl::FunctionRef<void(unsigned)> work) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i) {
    try {
      threads.emplace_back([work, i] { work(i); });
    } catch (const std::system_error& error) {
      if (!threads.empty()) break;
      return MakeError(
          absl::StatusCode::kResourceExhausted, reason::kNoMemory,
          fmt::format("starting a thread: {}; raise the limit of threads", error.what()));
    }
  }
  for (std::thread& thread : threads) thread.join();
  return absl::OkStatus();
}

}  // namespace ckptd

#include "server/transfer/threads.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace ckptd {
namespace {

// More threads than these only compete for memory bandwidth.
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

}  // namespace ckptd

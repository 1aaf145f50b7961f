#include "common/base/at_once.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

void AtOnce(size_t count, size_t most, absl::FunctionRef<void(size_t)> work) {
  if (count == 0) return;
  std::atomic<size_t> next = 1;
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  while (others.size() + 1 < std::min(count, most)) {
    try {
      others.emplace_back(take);
    } catch (const std::system_error&) {
      break;  // the running threads do the work
    }
  }
  work(0);
  take();
  for (std::thread& other : others) other.join();
}

absl::Status NoThread(const std::string& doing, const std::system_error& error) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                   fmt::format("{}: no thread could be started: {}; raise the limit of processes "
                               "(ulimit -u, or the container's), or try again",
                               doing, error.what()));
}

absl::StatusOr<std::thread> StartThread(const std::string& doing, std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return NoThread(doing, error);
  }
}

}  // namespace ckptd

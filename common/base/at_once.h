// Starts threads for work that can be done concurrently. If the system has no more threads, the
// work becomes slower or returns an error, and never ends the process.
#ifndef CKPTD_COMMON_BASE_AT_ONCE_H_
#define CKPTD_COMMON_BASE_AT_ONCE_H_

#include <cstddef>
#include <functional>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// Calls work(0) .. work(count - 1), at most `most` of them at a time, and waits for all. This
// thread calls work(0), and the calls for which no thread can be started.
void AtOnce(size_t count, size_t most, absl::FunctionRef<void(size_t)> work);

// The error if no thread can be started: ResourceExhausted NO_MEMORY.
absl::Status NoThread(const std::string& doing, const std::system_error& error);

// std::async on a thread of its own. Errors: NoThread's.
template <typename Function>
auto Async(const std::string& doing, Function function)
    -> absl::StatusOr<std::future<decltype(function())>> {
  try {
    return std::async(std::launch::async, std::move(function));
  } catch (const std::system_error& error) {
    return NoThread(doing, error);
  }
}

// A std::thread. Errors: NoThread's.
absl::StatusOr<std::thread> StartThread(const std::string& doing, std::function<void()> run);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_AT_ONCE_H_

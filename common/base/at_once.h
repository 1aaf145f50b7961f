// Threads for work that can be done at once, where a system that has no more of them is an
// error, or only slower, and never the end of the process.
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

// Calls work(0) .. work(count - 1), up to `most` of them at once, and waits for all. This
// thread calls work(0), and as many of the others as no thread can be had for.
void AtOnce(size_t count, size_t most, absl::FunctionRef<void(size_t)> work);

// What cannot be done because there is no thread for it: ResourceExhausted NO_MEMORY.
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

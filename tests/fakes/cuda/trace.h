// The record of what a process asked the driver: one JSON line per call,
// written at once and appended, so that processes may share the file.
#ifndef CKPTD_TESTS_FAKES_CUDA_TRACE_H_
#define CKPTD_TESTS_FAKES_CUDA_TRACE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ckptd::fake_cuda {

// A named number: a size, an address, a handle, a stream.
struct Field {
  template <typename T>
  Field(std::string_view name, T number) : key(name) {
    if constexpr (std::is_pointer_v<T>) {
      value = reinterpret_cast<std::uintptr_t>(number);
    } else {
      value = static_cast<std::uint64_t>(number);
    }
  }
  std::string_view key;
  std::uint64_t value;
};
using Fields = std::vector<Field>;

// Opens the file; an empty path: nothing is ever written. Called once.
void OpenTrace(const std::string& path);

// Safe from any thread, with or without the driver's lock, and in a forked child.
void TraceCall(std::string_view function, const Fields& fields, int result, bool after_sticky);
// A thing that the real driver may not notice and that is always a mistake.
void TraceViolation(std::string_view text);
// {"event": `event`} with fields.
void TraceEvent(std::string_view event, const Fields& fields);

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_TRACE_H_

#include "tests/fakes/cuda/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

namespace ckptd::fake_cuda {
namespace {

std::atomic<int> trace_fd{-1};
std::atomic<std::uint64_t> next_sequence{1};

// Our own words and numbers only: nothing in `body` needs JSON's escapes.
void Write(const std::string& body, const Fields& fields) {
  const int fd = trace_fd.load();
  if (fd < 0) return;
  std::string line = fmt::format("{{\"pid\":{},\"seq\":{},{}", ::getpid(), next_sequence++, body);
  for (const Field& field : fields) {
    fmt::format_to(std::back_inserter(line), ",\"{}\":{}", field.key, field.value);
  }
  line += "}\n";
  // One write: lines of several processes do not mix. A full disk loses lines, which tests see.
  [[maybe_unused]] const ssize_t written = ::write(fd, line.data(), line.size());
}

}  // namespace

void OpenTrace(const std::string& path) {
  if (path.empty()) return;
  trace_fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void TraceCall(std::string_view function, const Fields& fields, int result, bool after_sticky) {
  Write(fmt::format("\"call\":\"{}\",\"result\":{}{}", function, result,
                    after_sticky ? ",\"after_sticky\":true" : ""),
        fields);
}

void TraceViolation(std::string_view text) {
  Write(fmt::format("\"violation\":\"violation: {}\"", text), {});
}

void TraceEvent(std::string_view event, const Fields& fields) {
  Write(fmt::format("\"event\":\"{}\"", event), fields);
}

}  // namespace ckptd::fake_cuda

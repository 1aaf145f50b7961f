#include "server/memory/host/proc_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

}  // namespace

std::optional<std::string> ReadProcFile(const std::string& path) {
  const absl::StatusOr<UniqueFd> fd = OpenForReading(path);
  if (!fd.ok()) return std::nullopt;
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < kMaxFileBytes) {
    const ssize_t n = ::read(fd->get(), buffer.data(), buffer.size());
    if (n < 0) return std::nullopt;
    if (n == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return std::nullopt;
}

std::vector<std::string_view> SplitText(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<uint64_t> LeadingNumber(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

}  // namespace ckptd

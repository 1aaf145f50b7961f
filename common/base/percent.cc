#include "common/base/percent.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>

namespace ckptd {
namespace {

bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~/").find(c) != std::string_view::npos;
}

}  // namespace

std::string PercentEncoded(std::string_view path) {
  std::string text;
  for (const char c : path) {
    text += IsUnreserved(c) ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return text;
}

std::string PercentDecoded(std::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, text[i] == '%' ? 2 : 0);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (error == std::errc() && digits.size() == 2 && end == digits.data() + 2) {
      path.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      path.push_back(text[i]);
    }
  }
  return path;
}

}  // namespace ckptd

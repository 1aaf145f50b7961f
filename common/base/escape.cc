#include "common/base/escape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/utf8.h"

namespace ckptd {
namespace {

// The code point of `text`, which must be one well-formed sequence.
uint32_t CodePointOf(std::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (text.size() == 1) return first;
  uint32_t value = first & (0xFFU >> (text.size() + 1));
  for (const char c : text.substr(1)) value = (value << 6) | (static_cast<uint8_t>(c) & 0x3FU);
  return value;
}

bool SteersReader(uint32_t value) {
  return (value >= 0x80 && value < 0xA0) || value == 0x200E || value == 0x200F ||
         value == 0x061C || (value >= 0x2028 && value <= 0x202E) ||
         (value >= 0x2066 && value <= 0x2069) || value == 0xFEFF;
}

std::string Spelled(uint32_t value) {
  switch (value) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return value < 0x80 ? fmt::format("\\x{:02x}", value) : fmt::format("\\u{:04x}", value);
  }
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = std::max<size_t>(Utf8SequenceAt(text), 1);
    const std::string_view character = text.substr(0, bytes);
    const uint32_t value = CodePointOf(character);
    if (Utf8SequenceAt(text) == 0) {
      out += fmt::format("\\x{:02x}", value);
    } else if (value < 0x20 || value == 0x7F || SteersReader(value)) {
      out += Spelled(value);
    } else {
      out += character;
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace ckptd

#include "common/source/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/utf8.h"

namespace ckptd {
namespace {

constexpr size_t kMaxShownBytes = 200;

}  // namespace

std::string Quoted(std::string_view text) {
  const bool cut = text.size() > kMaxShownBytes;
  if (cut) {
    text = text.substr(0, kMaxShownBytes);
    text = text.substr(0, ValidUtf8Prefix(text));
  }
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    out.push_back(byte < 0x20 || byte == 0x7f ? '?' : c);
  }
  out += cut ? "...\"" : "\"";
  return out;
}

std::string Listed(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 3);
  std::string out;
  for (size_t i = 0; i < shown; ++i) out += (i == 0 ? "" : ", ") + Quoted(names[i]);
  if (shown < names.size()) out += " and " + std::to_string(names.size() - shown) + " more";
  return out;
}

}  // namespace ckptd

#include "common/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace ckptd {
namespace {

// Limits of the second byte, and the length of a sequence, by its first byte: table 3-7 of the
// Unicode standard. Length 0: no sequence starts with that byte.
struct Lead {
  size_t bytes;
  uint8_t second_min;
  uint8_t second_max;
};

Lead LeadOf(uint8_t first) {
  if (first < 0x80) return {1, 0, 0};
  if (first >= 0xc2 && first <= 0xdf) return {2, 0x80, 0xbf};
  if (first == 0xe0) return {3, 0xa0, 0xbf};
  if (first == 0xed) return {3, 0x80, 0x9f};
  if (first >= 0xe1 && first <= 0xef) return {3, 0x80, 0xbf};
  if (first == 0xf0) return {4, 0x90, 0xbf};
  if (first >= 0xf1 && first <= 0xf3) return {4, 0x80, 0xbf};
  if (first == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

size_t Utf8SequenceAt(std::string_view text) {
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  if (lead.bytes <= 1) return lead.bytes;
  if (text.size() < lead.bytes) return 0;
  const auto second = static_cast<uint8_t>(text[1]);
  if (second < lead.second_min || second > lead.second_max) return 0;
  for (size_t i = 2; i < lead.bytes; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if (next < 0x80 || next > 0xbf) return 0;
  }
  return lead.bytes;
}

size_t ValidUtf8Prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = 0;
    if (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & kHighBits) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const size_t bytes = Utf8SequenceAt(text.substr(at));
    if (bytes == 0) return at;
    at += bytes;
  }
  return at;
}

}  // namespace ckptd

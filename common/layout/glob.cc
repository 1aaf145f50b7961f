#include "common/layout/glob.h"

#include <cstddef>

namespace ckptd {

bool MatchesGlob(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  // Only the latest star can need more characters: earlier ones have already
  // found the earliest place where what follows them fits.
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool AreFewGlobs(std::span<const std::string> patterns, uint64_t name_bytes) {
  constexpr uint64_t kMaxSteps = uint64_t{1} << 32;
  uint64_t pattern_bytes = 0;
  for (const std::string& pattern : patterns) pattern_bytes += pattern.size() + 1;
  return pattern_bytes == 0 || name_bytes <= kMaxSteps / pattern_bytes;
}

}  // namespace ckptd

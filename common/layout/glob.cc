#include "common/layout/glob.h"

#include <fmt/format.h>

#include <limits>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Each step takes one from `left`. False once that is 0.
bool Match(std::string_view pattern, std::string_view text, uint64_t& left) {
  size_t p = 0;
  size_t t = 0;
  // Only the latest star can need more characters. Earlier ones have already found the earliest
  // match of what follows them.
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (left == 0 || --left == 0) return false;
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

}  // namespace

bool MatchesGlob(std::string_view pattern, std::string_view text) {
  uint64_t unlimited = std::numeric_limits<uint64_t>::max();
  return Match(pattern, text, unlimited);
}

bool CountedGlobs::Matches(size_t pattern, std::string_view text) {
  return Match(patterns_[pattern], text, left_) && !exhausted();
}

size_t CountedGlobs::FirstOf(std::string_view text) {
  size_t pattern = 0;
  while (pattern < size() && !exhausted() && !Matches(pattern, text)) ++pattern;
  if (exhausted()) return size();
  if (pattern < size()) used_[pattern] = true;
  return pattern;
}

std::vector<std::string> CountedGlobs::UnusedWarnings(std::string_view what) const {
  std::vector<std::string> warnings;
  for (size_t i = 0; i < size(); ++i) {
    if (used_[i]) continue;
    warnings.push_back(fmt::format("{}: {} matches no name that the patterns before it "
                                   "do not match",
                                   what, patterns_[i].substr(0, 200)));
  }
  return warnings;
}

absl::Status CountedGlobs::Check(std::string_view doing) const {
  if (!exhausted()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("{}: {} pattern{} for so many names take too long; use fewer and "
                               "shorter ones, with * for what names have in common",
                               doing, size(), size() == 1 ? "" : "s"));
}

}  // namespace ckptd

// Name patterns: `*` stands for any characters (dots too), `?` for exactly one,
// everything else for itself.
#ifndef CKPTD_COMMON_LAYOUT_GLOB_H_
#define CKPTD_COMMON_LAYOUT_GLOB_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

// True when `pattern` describes the whole of `text`. Byte-wise; at worst
// O(pattern x text), never exponential. Thread-safe.
bool MatchesGlob(std::string_view pattern, std::string_view text);

// Many patterns for many names, of callers who may want more than can be done in a moment:
// what is compared is counted, and from some number on nothing matches any more. Not
// thread-safe; the patterns outlive it.
class CountedGlobs {
 public:
  // Bytes compared: less than a second or two.
  static constexpr uint64_t kMostSteps = uint64_t{1} << 29;

  explicit CountedGlobs(std::span<const std::string> patterns)
      : patterns_(patterns), used_(patterns.size()) {}

  size_t size() const { return patterns_.size(); }
  bool Matches(size_t pattern, std::string_view text);
  // Position of the first pattern that describes `text`; size() for none.
  size_t FirstOf(std::string_view text);
  // For people, of each pattern that FirstOf has never answered. `what`: what the patterns
  // are given as, such as "no_split".
  std::vector<std::string> UnusedWarnings(std::string_view what) const;
  // OK while answers are worth something; else InvalidArgument INVALID_REQUEST.
  absl::Status Check(std::string_view doing) const;

 private:
  bool exhausted() const { return left_ == 0; }

  const std::span<const std::string> patterns_;
  std::vector<bool> used_;
  uint64_t left_ = kMostSteps;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_GLOB_H_

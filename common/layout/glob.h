// Name patterns: `*` matches any characters (dots too), `?` exactly one, everything else itself.
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

// True if `pattern` matches all of `text`. Byte-wise; at worst O(pattern x text), never
// exponential. Thread-safe.
bool MatchesGlob(std::string_view pattern, std::string_view text);

// Matches many patterns with many names, and limits the work that a caller can cause: after a
// number of compared bytes nothing matches any more. Not thread-safe. The patterns must outlive
// it.
class CountedGlobs {
 public:
  // Bytes to compare. They take a second or two.
  static constexpr uint64_t kMostSteps = uint64_t{1} << 29;

  explicit CountedGlobs(std::span<const std::string> patterns)
      : patterns_(patterns), used_(patterns.size()) {}

  size_t size() const { return patterns_.size(); }
  bool Matches(size_t pattern, std::string_view text);
  // Index of the first pattern that matches `text`. size() if none does.
  size_t FirstOf(std::string_view text);
  // One warning for each pattern that FirstOf has never returned. `what`: the option that has the
  // patterns, such as "no_split".
  std::vector<std::string> UnusedWarnings(std::string_view what) const;
  // OK while the limit is not reached. After that InvalidArgument INVALID_REQUEST.
  absl::Status Check(std::string_view doing) const;

 private:
  bool exhausted() const { return left_ == 0; }

  const std::span<const std::string> patterns_;
  std::vector<bool> used_;
  uint64_t left_ = kMostSteps;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_GLOB_H_

#include "client/cli/closest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ckptd::cli {
namespace {

constexpr size_t kMaxLetters = 64;  // longer words are not typed by people
constexpr size_t kMostDifferences = 2;

// The Levenshtein distance, computed with one row of its table at a time.
size_t Differences(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string Closest(std::string_view word, const std::vector<std::string>& known) {
  std::string closest;
  if (word.size() > kMaxLetters) return closest;
  size_t least = std::min(kMostDifferences + 1, (word.size() + 1) / 2);
  for (const std::string& one : known) {
    const size_t differences = Differences(word, one);
    if (differences >= least) continue;
    least = differences;
    closest = one;
  }
  return closest;
}

}  // namespace ckptd::cli

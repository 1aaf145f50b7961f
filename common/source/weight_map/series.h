// Numbered files: <stem>-<number>-of-<count><extension>, as transformers cuts a checkpoint, and the
// same behind shard-<rank>-, as torch's HuggingFaceStorageWriter has each rank write its chunks.
#ifndef CKPTD_COMMON_SOURCE_WEIGHT_MAP_SERIES_H_
#define CKPTD_COMMON_SOURCE_WEIGHT_MAP_SERIES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

// Those of `names`, which are sorted, that are the series that counts: the only one, or the only
// one of that stem. Empty: none does.
std::vector<std::string> ChooseSeries(const std::vector<std::string>& names,
                                      std::string_view extension, std::string_view usual_stem);

// Every number of each series in `names` must be there; some writers count from 0. Errors:
// NotFound SOURCE_NOT_FOUND naming those that are not, as FilesMissing.
absl::Status CheckSeriesComplete(const std::string& folder, const std::vector<std::string>& names,
                                 std::string_view extension);

// Files of ranks, which count from 1. A rank writes those files alone that it has something for, and
// no name says how many ranks there were.
class RankSeries {
 public:
  // `extension` must outlive it.
  RankSeries(const std::vector<std::string>& names, std::string_view extension);

  bool empty() const { return ranks_.empty(); }
  // Some rank must have a file of each number, unless these are of several saves. Errors: as
  // CheckSeriesComplete, with a star for the rank.
  absl::Status CheckComplete(const std::string& folder) const;
  // The files that would hold the same tensors as the file `name` and are not there: of ranks before
  // the last one, since later ones are not known.
  std::vector<std::string> LackedBeside(std::string_view name) const;
  // The ranks that have files: "ranks 1 to 4", "ranks 1 to 4 without 2, 3".
  std::string Describe() const;

 private:
  std::string_view extension_;
  std::map<std::string, std::set<uint32_t>> ranks_of_;  // by the name behind shard-<rank>-
  std::set<uint32_t> ranks_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_WEIGHT_MAP_SERIES_H_

// Numbered files: <stem>-<number>-of-<count><extension>, as transformers cuts a checkpoint.
#ifndef CKPTD_COMMON_SOURCE_WEIGHT_MAP_SERIES_H_
#define CKPTD_COMMON_SOURCE_WEIGHT_MAP_SERIES_H_

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

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_WEIGHT_MAP_SERIES_H_

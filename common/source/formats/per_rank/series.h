// Files of one save, one for each rank, by their names. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_SERIES_H_
#define CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_SERIES_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"

namespace ckptd::per_rank {

// accelerate's pytorch_model_fsdp_0_rank1.bin, verl's model_world_size_4_rank_1.pt.
struct Series {
  std::string stem;       // "pytorch_model_fsdp_0", "model"
  std::string part;       // "model", "optimizer" or "extra", as the stem says
  uint32_t ranks = 0;     // how many there are, as names say; 0: they do not
  std::string extension;  // ".bin"
  std::string before;     // of the rank's number in a name
  std::map<uint32_t, std::string> files;  // by rank
};

// All series of a folder, in the order of their names.
std::vector<Series> SeriesOf(const std::vector<std::string>& names);

// The series that is meant: of the part that is asked for, which may be a stem, too; by default the
// model's. Without files of ranks that its names say it has not. Errors: InvalidArgument
// SOURCE_INVALID for several, and as NoSuchPart.
absl::StatusOr<Series> ChooseSeries(const Listing& listing);

// Names of files that are not there, of these ranks.
std::vector<std::string> MissingOf(const Series& series, const std::vector<uint32_t>& ranks);

}  // namespace ckptd::per_rank

#endif  // CKPTD_COMMON_SOURCE_FORMATS_PER_RANK_SERIES_H_

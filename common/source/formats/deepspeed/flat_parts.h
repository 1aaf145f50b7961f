// Flat parameters over several files, as boxes of the parameters in them. Pure.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FLAT_PARTS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FLAT_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/source/formats/deepspeed/partitions.h"
#include "common/source/index.h"
#include "common/source/torch/file.h"

namespace ckptd::deepspeed {

// One rank's part of flat parameters: tensors of one dimension without gaps, one behind the other.
struct FlatPart {
  uint32_t file = 0;  // number in the index
  bool big_endian = false;
  std::vector<const torch::Tensor*> tensors;
  std::vector<uint64_t> begins;  // of each, in elements
};

// A part of these tensors; of each only the first `lengths` elements count.
FlatPart FlatPartOf(uint32_t file, bool big_endian,
                    const std::vector<const torch::Tensor*>& tensors,
                    const std::vector<uint64_t>& lengths);

// The entry of a parameter whose elements lie in these runs of the ranks' parts. Errors: DataLoss
// SOURCE_INVALID, fact "tensor", for parts of several types.
absl::StatusOr<TensorEntry> EntryOfRuns(const Parameter& parameter, const Runs& runs,
                                        const std::vector<FlatPart>& parts);

}  // namespace ckptd::deepspeed

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_FLAT_PARTS_H_

// Where ZeRO puts the elements of each parameter: flat groups that are cut over the ranks. The rules
// are those of deepspeed/utils/zero_to_fp32.py. Pure; thread-safe.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_PARTITIONS_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_PARTITIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"

namespace ckptd::deepspeed {

// A parameter of a flat group. Its shape has at most 2^63 elements.
struct Parameter {
  std::string name;
  Shape shape;
};

// Neighbouring elements of a parameter, in row-major order. Never empty.
struct PartRun {
  uint32_t rank = 0;
  uint64_t begin = 0;  // in what the rank has of the group, in elements
  uint64_t elements = 0;
  bool operator==(const PartRun&) const = default;
};

// The runs of one parameter, in the order of its elements. None for one without elements.
using Runs = std::vector<PartRun>;

// Errors of all: DataLoss SOURCE_INVALID, fact "tensor" where one is to blame. Each returns the
// runs of each parameter, in their order.

// Stages 1 and 2: `parts` has how many elements each rank has of a group, in which the parameters
// lie one behind the other, each with so many elements of padding behind it (`paddings`; empty: none
// has any). What is left at the end is padding, too. What ranks say of fragments
// (param_slice_mappings) is of no use: round_robin_gradients orders parameters otherwise.
absl::StatusOr<std::vector<Runs>> RunsOfGroup(const std::vector<Parameter>& parameters,
                                              const std::vector<uint64_t>& parts,
                                              const std::vector<uint64_t>& paddings = {});

// Stage 3: each parameter is cut for itself, and each rank has `part` elements of all of them. Also
// InvalidArgument SOURCE_INVALID for more than kMaxSourcePieces runs.
absl::StatusOr<std::vector<Runs>> RunsOfStage3(const std::vector<Parameter>& parameters,
                                               uint64_t part, uint32_t ranks);

}  // namespace ckptd::deepspeed

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_PARTITIONS_H_

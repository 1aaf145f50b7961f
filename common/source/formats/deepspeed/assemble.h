// Makes an index of what the files of a DeepSpeed checkpoint say. No I/O.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_ASSEMBLE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_ASSEMBLE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/formats/deepspeed/states.h"

namespace ckptd::deepspeed {

// All files of a checkpoint that its stage of ZeRO has, in the order of their ranks.
struct States {
  uint64_t stage = 0;
  // One, or of stage 3 one for each rank.
  std::vector<ModelStates> models;
  // One for each rank; none without ZeRO, and where they are not asked for.
  std::vector<OptimizerStates> optimizers;
};

// The caller still sets `source` and `format`, and adds the files that say which files count.
// Errors of all, each with fact "file": DataLoss SOURCE_INVALID for files that do not belong
// together or are damaged, InvalidArgument SOURCE_INVALID where a limit is passed.

// The model in 32 bits: the optimizer's own weights, and the rest (buffers, frozen parameters) as
// the module has it, which a remark says. Without `optimizers` the module's state dict as it was
// saved. Tied names are aliases.
absl::StatusOr<OpenedCheckpoint> AssembleModel(const States& states);

// The tensors that the optimizer keeps for each parameter: "state.NAME.exp_avg".
absl::StatusOr<OpenedCheckpoint> AssembleOptimizer(const States& states);

}  // namespace ckptd::deepspeed

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DEEPSPEED_ASSEMBLE_H_

// Tensors that load as they are stored, and that a trainer may not be able to use so. Pure.
#ifndef CKPTD_COMMON_SOURCE_ODD_TENSORS_H_
#define CKPTD_COMMON_SOURCE_ODD_TENSORS_H_

#include <string>
#include <vector>

#include "common/source/index.h"

namespace ckptd {

// Sentences about 8-bit floats without a scale beside them, scales without their tensor, and weights
// of adapters without elements (as a rank of FSDP or ZeRO-3 saves them that has no part of them).
std::vector<std::string> RemarksOnOddTensors(const CheckpointIndex& index);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_ODD_TENSORS_H_

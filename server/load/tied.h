// Tensors that share memory in the ranks' models and are apart in the source.
#ifndef CKPTD_SERVER_LOAD_TIED_H_
#define CKPTD_SERVER_LOAD_TIED_H_

#include <functional>
#include <span>

#include "absl/status/status.h"
#include "common/layout/layout.h"
#include "common/source/access.h"
#include "common/source/index.h"

namespace ckptd {

// OK where the source has one tensor for the names that a target has, or equal ones: else whose
// bytes a model ends up with would be chance. Reads such tensors up to the first difference;
// blocks as storage does, and asks `interrupted` every MiB. Errors: InvalidArgument
// LAYOUT_MISMATCH naming two of them; those of reading; interrupted's.
absl::Status CheckTied(const CheckpointIndex& index, std::span<const RankLayout* const> layouts,
                       const std::function<absl::Status()>& interrupted,
                       const SourceAccess& access = {});

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_TIED_H_

// Which of several errors of one load is the one to tell.
#ifndef CKPTD_SERVER_LOAD_ERROR_PRIORITY_H_
#define CKPTD_SERVER_LOAD_ERROR_PRIORITY_H_

#include "absl/status/status.h"

namespace ckptd {

// Whether an error only says that another rank has failed, or that the load has. OK does not.
// Such an error waits for a better one: timing::kPrimaryError.
bool IsSecondary(const absl::Status& status);
// Whether `status` is to be told in place of `told`, which came before it.
bool Outranks(const absl::Status& status, const absl::Status& told);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_ERROR_PRIORITY_H_

#include "server/load/error_priority.h"

#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

bool IsSecondary(const absl::Status& status) {
  if (status.ok()) return false;
  const std::string why = ReasonOf(status);
  // What NCCL says of a connection, which ends with the rank at its other end.
  if (why == reason::kNcclFailed) return status.code() == absl::StatusCode::kUnavailable;
  // What a rank says that was told to end, by whoever.
  return why == reason::kEpochChanged || why == reason::kCheckpointNotFound;
}

bool Outranks(const absl::Status& status, const absl::Status& told) {
  if (status.ok()) return false;
  return told.ok() || (IsSecondary(told) && !IsSecondary(status));
}

}  // namespace ckptd

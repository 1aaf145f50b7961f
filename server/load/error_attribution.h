// Whose fault an error is: what an error that a rank told, or that a call to it ended with, means
// for the load. Pure: the runner acts on it.
#ifndef CKPTD_SERVER_LOAD_ERROR_ATTRIBUTION_H_
#define CKPTD_SERVER_LOAD_ERROR_ATTRIBUTION_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace ckptd {

struct Attribution {
  // The error with its rank in front, unless it names one itself.
  absl::Status status;
  // The rank does not answer: it leaves the group.
  bool rank_is_lost = false;
  // The call ended because the load's own time was over: where that is so, the deadline is told.
  bool may_be_deadline = false;
  // The rank has heard of a change of the group before the leader: where there is one, it is told.
  bool may_be_epoch = false;
};
// `status` is not OK, and came from `rank`.
Attribution Attribute(uint32_t rank, const absl::Status& status);

// The rank that an error names as its origin, if that is below `ranks`.
std::optional<uint32_t> RankNamedBy(const absl::Status& status, size_t ranks);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_ERROR_ATTRIBUTION_H_

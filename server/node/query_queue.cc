#include "server/node/query_queue.h"

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

bool QueryQueue::Enter() {
  if (++waiting_ <= kMost) return true;
  --waiting_;
  return false;
}

absl::Status QueryQueue::TooMany(const std::string& doing) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kInvalidRequest,
                   fmt::format("{}: {} inspections, plans and verifications wait on this daemon "
                               "already; ask again when they have ended",
                               doing, kMost));
}

absl::Status QueryQueue::NoAnswer(const std::string& doing, StorageWatch* watch) const {
  if (watch != nullptr) {
    watch->LeaveBehind();
    // A caller that waits for less time still hears of the file.
    const auto stalled = watch->Oldest(patience_ / 2);
    if (stalled.has_value()) return StorageStalled(doing, *stalled);
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("{}: the daemon did not finish in time (its storage may be slow, or "
                               "others asked before); try again",
                               doing));
}

}  // namespace ckptd

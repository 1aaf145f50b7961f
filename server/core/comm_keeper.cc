#include "server/core/comm_keeper.h"

#include <utility>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr std::chrono::seconds kClosePatience{8};

}  // namespace

absl::StatusOr<std::string> CommKeeper::NewId() {
  if (comms_ != nullptr) return comms_->MakeId();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
                   "making a communicator: " + why_none_);
}

absl::StatusOr<std::string> CommKeeper::IdFor(const std::string& members) {
  if (held_ != nullptr && members == members_) return id_;
  members_ = members;
  return NewId();
}

absl::StatusOr<GroupComm*> CommKeeper::Join(GroupCommOptions options,
                                            GroupComm::Deadline deadline) {
  if (comms_ == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
                     "joining a communicator: " + why_none_);
  }
  if (held_ != nullptr && id_ == options.id) {
    held_->Interrupt(std::move(options.interrupted));
    return held_.get();
  }
  held_.reset();  // of another group, or one that others have given up
  id_ = options.id;
  CKPTD_ASSIGN_OR_RETURN(held_, comms_->Join(std::move(options), deadline));
  return held_.get();
}

void CommKeeper::Done(const absl::Status& status) {
  if (held_ == nullptr) return;
  held_->Interrupt(nullptr);
  if (status.ok() && keep_) return;
  if (status.ok()) {
    const absl::Status closed =
        held_->Close(std::chrono::steady_clock::now() + kClosePatience);
    if (!closed.ok()) Log(LogLevel::kWarn, "closing the communicator: {}", MessageOf(closed));
  }
  held_.reset();
}

}  // namespace ckptd

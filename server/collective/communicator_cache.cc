#include "server/collective/communicator_cache.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
absl::StatusOr<std::string> CommunicatorCache::IdFor(uint64_t epoch, const std::vector<uint32_t>& ranks,
                                                     const std::vector<std::string>& held) {
  if (comms_ == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
                     "making a communicator: " + why_none_);
  }
  if (std::exchange(made_in_, epoch) != epoch) made_.clear();
  std::string& id = made_[ranks];
  const bool held_by_all = std::all_of(held.begin(), held.end(),
                                       [&](const std::string& one) { return one == id; });
  if (id.empty() || !held_by_all) {
    CKPTD_ASSIGN_OR_RETURN(id, comms_->MakeId());
  }
  return id;
}

void CommunicatorCache::Drop() {
  failed_ = true;
  AwaitTeardown();
  made_.clear();
}

void CommunicatorCache::AwaitTeardown() {
  if (!std::exchange(failed_, false)) return;
  held_.reset();
  if (comms_ != nullptr) comms_->AwaitEnds();
}

absl::StatusOr<GroupComm*> CommunicatorCache::Join(GroupCommOptions options,
                                                   GroupComm::Deadline deadline) {
  if (comms_ == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
                     "joining a communicator: " + why_none_);
  }
  AwaitTeardown();
  if (held_ != nullptr && id_ == options.id) {
    held_->Interrupt(std::move(options.interrupted));
    return held_.get();
  }
  held_.reset();  // belongs to another group, or others may have dropped theirs
  id_ = options.id;
  auto joined = comms_->Join(std::move(options), deadline);
  failed_ = !joined.ok();
  CKPTD_RETURN_IF_ERROR(joined.status());
  held_ = *std::move(joined);
  return held_.get();
}

void CommunicatorCache::Done(const absl::Status& status) {
  if (held_ == nullptr) return;
  held_->Interrupt(nullptr);
  failed_ = !status.ok();
  if (failed_ || keep_) return;
  const absl::Status closed = held_->Close(std::chrono::steady_clock::now() + timing::kCommunicatorClose);
  if (!closed.ok()) Log(LogLevel::kWarn, "closing the communicator: {}", MessageOf(closed));
  held_.reset();
}

}  // namespace ckptd

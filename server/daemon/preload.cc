#include "server/daemon/preload.h"

#include <chrono>
#include <utility>

#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr std::chrono::milliseconds kPoll{200};

}  // namespace

absl::Status Preload(Node& node, const LoadRequest& request, const std::function<bool()>& stop) {
  CKPTD_ASSIGN_OR_RETURN(Node::LoadReply reply, node.Load(request, ""));
  CheckpointInfo info = std::move(reply.info);
  uint64_t seen = 0;
  while (info.state == CheckpointState::kLoading) {
    if (stop()) return absl::CancelledError("the daemon stops");
    CKPTD_ASSIGN_OR_RETURN(info, node.catalog().watchers().Watch(info.name, seen, Clock::now() + kPoll));
  }
  return info.state == CheckpointState::kFailed ? info.failure : absl::OkStatus();
}

}  // namespace ckptd

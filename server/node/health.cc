#include "server/node/health.h"

#include <optional>
#include <utility>

namespace ckptd {
namespace {

ServingStatus When(bool serving) {
  return serving ? ServingStatus::kServing : ServingStatus::kNotServing;
}

// The newest checkpoint of a source, by its absolute path. Storage is not asked, since it may hang.
std::optional<CheckpointInfo> NewestOf(Node& node, std::string source) {
  while (source.size() > 1 && source.back() == '/') source.pop_back();
  for (CheckpointInfo& info : node.catalog().List()) {
    if (info.source == source) return std::move(info);
  }
  return std::nullopt;
}

std::optional<CheckpointInfo> Find(Node& node, const std::string& asked) {
  if (asked.front() == '/') return NewestOf(node, asked);
  constexpr std::string_view kNames = "checkpoints/";
  const auto info =
      node.catalog().Get(asked.rfind(kNames, 0) == 0 ? asked : std::string(kNames) + asked);
  return info.ok() ? std::optional(*info) : std::nullopt;
}

}  // namespace

ServingStatus HealthOf(Node& node, std::string_view service) {
  if (service == kLivenessService) return ServingStatus::kServing;
  const bool draining = !node.CheckNotDraining().ok();
  if (service.empty()) return When(!draining);
  if (service == kGroupService) return When(!draining && node.WaitReady(Clock::now()));
  if (service.rfind(kCheckpointService, 0) != 0) return ServingStatus::kUnknown;
  const std::string asked(service.substr(kCheckpointService.size()));
  if (asked.empty()) return ServingStatus::kUnknown;
  const auto found = Find(node, asked);
  if (!found.has_value()) return ServingStatus::kUnknown;
  return When(!draining && found->state == CheckpointState::kActive);
}

}  // namespace ckptd

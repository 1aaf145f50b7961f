#include "server/metrics/node_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "server/metrics/families.h"
#include "server/metrics/labels.h"

namespace ckptd {
namespace {

// One sample for each key; those that are there from the start show 0.
Family CountsOf(const MetricSpec& spec, const char* label, const std::map<std::string, double>& counts) {
  Family family{spec, {}};
  for (const auto& [key, count] : counts) family.samples.push_back({"", {{label, key}}, count});
  return family;
}

void CollectMemory(const Node::Info& info, std::vector<Family>& families) {
  const MemoryUsage& memory = info.memory;
  for (const auto& [spec, bytes] : {std::pair{metric::kBudget, memory.budget},
                                    {metric::kUsed, memory.used},
                                    {metric::kLingering, memory.lingering},
                                    {metric::kArena, memory.arena},
                                    {metric::kArenaTarget, memory.arena_target},
                                    {metric::kHugePages, memory.huge_pages},
                                    {metric::kStaging, memory.staging},
                                    {metric::kHostTierBudget, info.host_tier_budget},
                                    {metric::kHostTierUsed, info.host_tier_used}}) {
    families.push_back(GaugeOf(spec, static_cast<double>(bytes)));
  }
}

void CollectCheckpoints(Node& node, std::vector<Family>& families) {
  std::map<std::string, double> states, stages, modes;
  for (const auto state : {CheckpointState::kLoading, CheckpointState::kActive,
                           CheckpointState::kFailed, CheckpointState::kTaken}) {
    states[std::string(NameOf(state))] = 0;
  }
  for (const auto stage : {Stage::kGathering, Stage::kQueued, Stage::kTransferring,
                           Stage::kWaitingForMemory}) {
    stages[LabelOf(stage)] = 0;
  }
  for (const auto mode : {AttachMode::kShared, AttachMode::kPrivate, AttachMode::kExclusive}) {
    modes[LabelOf(mode)] = 0;
  }
  for (const CheckpointInfo& info : node.catalog().List()) {
    ++states[std::string(NameOf(info.state))];
    if (info.state == CheckpointState::kLoading) ++stages[LabelOf(info.progress.stage)];
  }
  for (const LeaseInfo& lease : node.leases().List()) ++modes[LabelOf(lease.mode)];
  families.push_back(CountsOf(metric::kCheckpoints, "state", states));
  families.push_back(CountsOf(metric::kLoadsActive, "stage", stages));
  families.push_back(CountsOf(metric::kLeases, "mode", modes));
}

}  // namespace

std::vector<Family> CollectNode(Node& node) {
  const Node::Info info = node.GetInfo();
  std::vector<Family> families = {
      GaugeOf(metric::kBuildInfo, 1, {{"version", info.identity.version}}),
      GaugeOf(metric::kReady, info.state == "READY" ? 1 : 0),
      GaugeOf(metric::kDraining, info.state == "DRAINING" ? 1 : 0),
      GaugeOf(metric::kWorldSize, info.identity.world_size),
      GaugeOf(metric::kEpoch, static_cast<double>(info.epoch)),
      {metric::kMembers, {}}};
  if (info.identity.rank == 0) {
    families.back() = GaugeOf(metric::kMembers, static_cast<double>(std::count_if(
                                  info.members.begin(), info.members.end(),
                                  [](const MemberState& member) { return member.joined; })));
  }
  CollectMemory(info, families);
  CollectCheckpoints(node, families);
  return families;
}

Labels CommonLabels(const MemberIdentity& identity) {
  return {{"group", identity.job}, {"rank", std::to_string(identity.rank)}};
}

}  // namespace ckptd

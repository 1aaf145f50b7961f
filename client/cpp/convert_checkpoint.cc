#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "client/cpp/convert.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

std::optional<TimePoint> TimeOf(bool set, const google::protobuf::Timestamp& time) {
  if (!set) return std::nullopt;
  // Nanoseconds since 1970 overflow in 2262.
  constexpr int64_t kMost = 9'000'000'000;
  const auto since = std::chrono::seconds(std::clamp(time.seconds(), -kMost, kMost)) +
                     std::chrono::nanoseconds(time.nanos());
  return TimePoint(std::chrono::duration_cast<TimePoint::duration>(since));
}

Seconds SecondsOf(const google::protobuf::Duration& duration) {
  return Seconds(static_cast<double>(duration.seconds()) +
                 static_cast<double>(duration.nanos()) * 1e-9);
}

AttachMode ModeOf(v1::AttachMode mode) {
  switch (mode) {
    case v1::ATTACH_MODE_PRIVATE:
      return AttachMode::kPrivate;
    case v1::ATTACH_MODE_EXCLUSIVE:
      return AttachMode::kExclusive;
    default:
      return AttachMode::kShared;
  }
}

CheckpointState StateOf(v1::Checkpoint::State state) {
  return state >= 0 && state <= v1::Checkpoint::STATE_TAKEN ? static_cast<CheckpointState>(state)
                                                            : CheckpointState::kUnspecified;
}

LoadStage StageOf(v1::Stage stage) {
  return stage >= 0 && stage <= v1::STAGE_WAITING_FOR_MEMORY ? static_cast<LoadStage>(stage)
                                                     : LoadStage::kUnspecified;
}

LoadProgress ProgressOf(const v1::Progress& progress) {
  LoadProgress out;
  out.stage = StageOf(progress.stage());
  out.bytes_total = progress.bytes_total();
  out.bytes_done = progress.bytes_done();
  out.bytes_per_second = progress.bytes_per_second();
  out.slowest_rank = progress.slowest_rank();
  out.waiting_ranks.assign(progress.waiting_ranks().begin(), progress.waiting_ranks().end());
  out.conflict = progress.conflict();
  out.no_memory = progress.no_memory();
  out.storage_bytes = progress.storage_bytes();
  out.mapped_bytes = progress.mapped_bytes();
  out.direct_bytes = progress.direct_bytes();
  out.sent_bytes = progress.sent_bytes();
  out.restored_bytes = progress.restored_bytes();
  out.streamed_ranks.assign(progress.streamed_ranks().begin(), progress.streamed_ranks().end());
  for (const auto& stage : progress.stages()) {
    out.stages.push_back({StageOf(stage.stage()), SecondsOf(stage.duration())});
  }
  return out;
}

LoadFailure FailureOf(const v1::Failure& failure) {
  LoadFailure out;
  // 0 would be "OK", which is no failure.
  if (failure.code() > 0 && failure.code() <= 16) {
    out.code = static_cast<absl::StatusCode>(failure.code());
  }
  out.message = failure.message();
  out.reason = failure.reason();
  out.rank = failure.rank();
  return out;
}

MemoryInfo MemoryOf(const v1::MemoryInfo& memory) {
  MemoryInfo out;
  out.tier = memory.tier();
  out.why = memory.why();
  out.budget_bytes = memory.budget_bytes();
  out.used_bytes = memory.used_bytes();
  out.arena_bytes = memory.arena_bytes();
  out.arena_target_bytes = memory.arena_target_bytes();
  out.arena_why = memory.arena_why();
  out.huge_page_bytes = memory.huge_page_bytes();
  out.lingering_bytes = memory.lingering_bytes();
  out.device_uuid = memory.device_uuid();
  out.staging_bytes = memory.staging_bytes();
  out.host_tier_bytes = memory.host_tier_bytes();
  out.host_tier_used_bytes = memory.host_tier_used_bytes();
  return out;
}

}  // namespace

absl::Status BadAnswer(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidReply,
                   fmt::format("reading the daemon's answer: {}; client and daemon do not fit "
                               "together, update the older one",
                               why));
}

CheckpointInfo FromProto(const v1::Checkpoint& checkpoint) {
  CheckpointInfo out;
  out.name = checkpoint.name();
  out.source = checkpoint.source();
  out.state = StateOf(checkpoint.state());
  out.intended_mode = ModeOf(checkpoint.intended_mode());
  if (checkpoint.handle_kind() > 0 && v1::HandleKind_IsValid(checkpoint.handle_kind())) {
    out.handle_kind = static_cast<HandleKind>(checkpoint.handle_kind());
  }
  out.rank = checkpoint.rank();
  out.world_size = checkpoint.world_size();
  out.epoch = checkpoint.epoch();
  out.slab_bytes = checkpoint.slab_bytes();
  out.tensor_count = checkpoint.tensor_count();
  out.plan_digest = checkpoint.plan_digest();
  out.identity = checkpoint.identity();
  out.source_identity = checkpoint.source_identity();
  out.digests = checkpoint.digests();
  out.pinned = checkpoint.pinned();
  out.lease_count = checkpoint.lease_count();
  out.progress = ProgressOf(checkpoint.progress());
  if (checkpoint.has_failure()) out.failure = FailureOf(checkpoint.failure());
  out.resident_ranks = checkpoint.resident_ranks();
  out.create_time = TimeOf(checkpoint.has_create_time(), checkpoint.create_time());
  out.active_time = TimeOf(checkpoint.has_active_time(), checkpoint.active_time());
  out.layout = checkpoint.layout();
  out.served_from = checkpoint.served_from();
  return out;
}

PlanSummary FromProto(const v1::PlanLoadResponse& response) {
  PlanSummary out;
  for (const auto& rank : response.ranks()) {
    out.ranks.push_back({rank.rank(), rank.slab_bytes(), rank.tensor_bytes(), rank.tensor_count(),
                         rank.received_bytes()});
  }
  for (const auto& file : response.files()) out.files.push_back({file.path(), file.read_bytes()});
  out.storage_bytes = response.storage_bytes();
  out.peak_rank_bytes = response.peak_rank_bytes();
  out.total_slab_bytes = response.total_slab_bytes();
  out.distinct_bytes = response.distinct_bytes();
  out.plan_digest = response.plan_digest();
  return out;
}

DeviceMap FromProto(const v1::DeviceMap& map) {
  DeviceMap out;
  for (const auto& module : map.modules()) {
    out.modules.push_back({module.name(), module.device(), module.bytes()});
  }
  for (const auto& device : map.devices()) {
    out.devices.push_back({device.device(), device.limit_bytes(), device.placed_bytes()});
  }
  out.total_bytes = map.total_bytes();
  out.largest_layer_bytes = map.largest_layer_bytes();
  out.warnings.assign(map.warnings().begin(), map.warnings().end());
  return out;
}

VerifyResult FromProto(const v1::VerifyCheckpointResponse& response) {
  VerifyResult out;
  out.tensor_count = response.tensor_count();
  out.bytes = response.bytes();
  out.mismatched.assign(response.mismatched().begin(), response.mismatched().end());
  out.files.assign(response.files().begin(), response.files().end());
  out.files.resize(out.mismatched.size());  // an older daemon does not send them
  out.rank = response.rank();
  return out;
}

LeaseInfo FromProto(const v1::Lease& lease) {
  LeaseInfo out;
  out.name = lease.name();
  out.checkpoint = lease.checkpoint();
  out.mode = ModeOf(lease.mode());
  out.pid = lease.pid();
  out.uid = lease.uid();
  out.connected = lease.connected();
  out.create_time = TimeOf(lease.has_create_time(), lease.create_time());
  return out;
}

DaemonInfo FromProto(const v1::GetDaemonInfoResponse& response) {
  DaemonInfo out;
  out.version = response.version();
  out.job = response.job();
  out.rank = response.rank();
  out.world_size = response.world_size();
  out.epoch = response.epoch();
  out.pid = response.pid();
  out.start_time = TimeOf(response.has_start_time(), response.start_time());
  out.state = response.state();
  out.detail = response.detail();
  out.memory = MemoryOf(response.memory());
  for (const auto& member : response.members()) {
    out.members.push_back({member.rank(), member.address(), member.host(), member.pid(),
                           member.joined(), SecondsOf(member.since_heartbeat())});
  }
  out.config.insert(response.config().begin(), response.config().end());
  out.workload_socket = response.workload_socket();
  out.fd_socket = response.fd_socket();
  out.peer_address = response.peer_address();
  out.checkpoint_count = response.checkpoint_count();
  out.lease_count = response.lease_count();
  return out;
}

}  // namespace client
}  // namespace ckptd

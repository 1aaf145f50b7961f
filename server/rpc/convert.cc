#include "server/rpc/convert.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/wire/layout.h"
#include "common/wire/sendable_text.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

constexpr size_t kMaxJobBytes = 64;
// A page of a tensor table stays well under gRPC's default 4 MiB.
constexpr size_t kPageBytes = size_t{1} << 20;

std::chrono::nanoseconds TimeoutFrom(const google::protobuf::Duration& duration, bool present) {
  if (!present) return timing::kDefaultTimeout;
  return std::clamp<std::chrono::nanoseconds>(FromProto(duration), std::chrono::milliseconds(1),
                                              timing::kMaxTimeout);
}

}  // namespace

google::protobuf::Duration ToProto(std::chrono::nanoseconds duration) {
  google::protobuf::Duration out;
  out.set_seconds(duration.count() / 1'000'000'000);
  out.set_nanos(static_cast<int32_t>(duration.count() % 1'000'000'000));
  return out;
}

std::chrono::nanoseconds FromProto(const google::protobuf::Duration& duration) {
  // Checked before the sum, so that a hostile value does not overflow, and after it, because
  // hostile nanoseconds make whole seconds.
  constexpr std::chrono::seconds kMost{1'000'000'000};
  const std::chrono::seconds seconds(
      std::clamp<int64_t>(duration.seconds(), -kMost.count(), kMost.count()));
  return std::clamp<std::chrono::nanoseconds>(
      seconds + std::chrono::nanoseconds(duration.nanos()), -kMost, kMost);
}

google::protobuf::Timestamp ToProto(std::chrono::system_clock::time_point time) {
  const auto nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  google::protobuf::Timestamp out;
  out.set_seconds(nanos / 1'000'000'000);
  out.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return out;
}

v1::ReadCounters ToProto(const ReadCounters& read) {
  v1::ReadCounters out;
  out.set_storage_bytes(read.storage_bytes);
  out.set_mapped_bytes(read.mapped_bytes);
  out.set_direct_bytes(read.direct_bytes);
  return out;
}

ReadCounters FromProto(const v1::ReadCounters& read) {
  return {read.storage_bytes(), read.mapped_bytes(), read.direct_bytes()};
}

v1::SlowFile ToProto(const FileRate& file) {
  v1::SlowFile out;
  out.set_path(SendableText(file.path));
  out.set_bytes_per_second(file.bytes_per_second);
  return out;
}

FileRate FromProto(const v1::SlowFile& file) { return {file.path(), file.bytes_per_second()}; }

v1::Progress ToProto(const Progress& progress) {
  v1::Progress out;
  out.set_stage(static_cast<v1::Stage>(progress.stage));
  out.set_bytes_total(progress.bytes_total);
  out.set_bytes_done(progress.bytes_done);
  out.set_bytes_per_second(progress.bytes_per_second);
  out.set_slowest_rank(progress.slowest_rank);
  if (!progress.slowest_file.path.empty()) {
    *out.mutable_slowest_file() = ToProto(progress.slowest_file);
  }
  for (const int32_t rank : progress.waiting_ranks) out.add_waiting_ranks(rank);
  out.set_conflict(SendableText(progress.conflict));
  out.set_no_memory(SendableText(progress.no_memory));
  *out.mutable_read() = ToProto(progress.read);
  out.set_sent_bytes(progress.sent_bytes);
  out.set_restored_bytes(progress.restored_bytes);
  for (const int32_t rank : progress.streamed_ranks) out.add_streamed_ranks(rank);
  for (const auto& [stage, duration] : progress.stages) {
    auto* time = out.add_stages();
    time->set_stage(static_cast<v1::Stage>(stage));
    *time->mutable_duration() = ToProto(duration);
  }
  return out;
}

Progress FromProto(const v1::Progress& progress) {
  Progress out;
  const auto stage = [](v1::Stage value) {
    return v1::Stage_IsValid(value) ? static_cast<Stage>(value) : Stage::kUnspecified;
  };
  out.stage = stage(progress.stage());
  out.bytes_total = progress.bytes_total();
  out.bytes_done = progress.bytes_done();
  out.bytes_per_second = progress.bytes_per_second();
  out.slowest_rank = progress.slowest_rank();
  out.slowest_file = FromProto(progress.slowest_file());
  out.waiting_ranks.assign(progress.waiting_ranks().begin(), progress.waiting_ranks().end());
  out.conflict = progress.conflict();
  out.no_memory = progress.no_memory();
  out.read = FromProto(progress.read());
  out.sent_bytes = progress.sent_bytes();
  out.restored_bytes = progress.restored_bytes();
  out.streamed_ranks.assign(progress.streamed_ranks().begin(), progress.streamed_ranks().end());
  for (const v1::StageTime& time : progress.stages()) {
    out.stages.emplace_back(stage(time.stage()), FromProto(time.duration()));
  }
  return out;
}

v1::Failure ToFailure(const absl::Status& status) {
  v1::Failure failure;
  failure.set_code(static_cast<int>(status.code()));
  failure.set_message(SendableText(MessageOf(status)));
  failure.set_reason(ReasonOf(status));
  const Facts facts = FactsOf(status);
  const auto rank = facts.find("rank");
  failure.set_rank(rank == facts.end() ? -1 : std::atoi(rank->second.c_str()));
  return failure;
}

absl::Status FromFailure(const v1::Failure& failure, const Facts& facts) {
  const bool known = failure.code() > 0 && failure.code() <= 16;
  const auto code = known ? static_cast<absl::StatusCode>(failure.code())
                          : absl::StatusCode::kInternal;
  return MakeError(code, failure.reason(), failure.message(), facts);
}

v1::Checkpoint ToProto(const CheckpointInfo& info) {
  v1::Checkpoint out;
  out.set_name(info.name);
  out.set_source(TextOfPath(info.source));
  out.set_state(static_cast<v1::Checkpoint::State>(info.state));
  out.set_intended_mode(ToProto(info.intended));
  out.set_handle_kind(ToProto(info.kind));
  out.set_rank(static_cast<int32_t>(info.rank));
  out.set_world_size(static_cast<int32_t>(info.world_size));
  out.set_epoch(info.epoch);
  out.set_slab_bytes(info.slab_bytes);
  out.set_tensor_count(static_cast<uint32_t>(info.tensor_count));
  if (info.plan_digest != 0) out.set_plan_digest(HexDigest(info.plan_digest));
  if (info.identity != 0) out.set_identity(HexDigest(info.identity));
  if (info.source_identity != 0) out.set_source_identity(HexDigest(info.source_identity));
  out.set_digests(info.digests);
  out.set_pinned(info.pinned);
  out.set_lease_count(info.leases);
  *out.mutable_progress() = ToProto(info.progress);
  const bool ended = info.state == CheckpointState::kFailed || info.state == CheckpointState::kActive;
  if (ended && !info.failure.ok()) *out.mutable_failure() = ToFailure(info.failure);
  if (info.state == CheckpointState::kActive) out.set_resident_ranks(info.resident_ranks);
  *out.mutable_create_time() = ToProto(info.created);
  if (info.activated.time_since_epoch().count() != 0) {
    *out.mutable_active_time() = ToProto(info.activated);
  }
  out.set_layout(info.layout);
  out.set_view(SendableText(info.view));
  out.set_served_from(info.served_from);
  return out;
}

absl::StatusOr<AttachMode> FromProto(v1::AttachMode mode) {
  if (mode == v1::ATTACH_MODE_UNSPECIFIED) return AttachMode::kShared;
  if (v1::AttachMode_IsValid(mode)) return static_cast<AttachMode>(mode);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("reading the attach mode: {} is unknown; use SHARED, PRIVATE or "
                               "EXCLUSIVE",
                               static_cast<int>(mode)));
}

v1::AttachMode ToProto(AttachMode mode) { return static_cast<v1::AttachMode>(mode); }

absl::StatusOr<std::optional<HandleKind>> FromProto(v1::HandleKind kind) {
  if (kind == v1::HANDLE_KIND_UNSPECIFIED) return std::nullopt;
  if (v1::HandleKind_IsValid(kind)) return static_cast<HandleKind>(kind);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("reading the kind of handle: {} is unknown to this daemon; use "
                               "MEMFD, VMM_FD or CUDA_IPC, or leave it out",
                               static_cast<int>(kind)));
}

v1::HandleKind ToProto(std::optional<HandleKind> kind) {
  return kind.has_value() ? static_cast<v1::HandleKind>(*kind) : v1::HANDLE_KIND_UNSPECIFIED;
}

v1::LoadSpec ToProto(const LoadRequest& request) {
  v1::LoadSpec out;
  out.set_source(TextOfPath(request.source));
  *out.mutable_layout() = ToProto(request.layout);
  *out.mutable_dtype_policy() = ToProto(request.policy);
  out.set_intended_mode(ToProto(request.intended));
  out.set_handle_kind(ToProto(request.kind));
  out.set_skip_digests(!request.digests);
  *out.mutable_timeout() = ToProto(request.timeout);
  *out.mutable_wait_memory() = ToProto(request.wait_memory);
  out.set_job_key(request.job);
  out.set_view(request.view);
  return out;
}

absl::StatusOr<LoadRequest> FromProto(const v1::LoadSpec& spec) {
  LoadRequest out;
  out.source = SourceOfText(spec.source());
  CKPTD_ASSIGN_OR_RETURN(out.layout, FromProto(spec.layout()));
  CKPTD_ASSIGN_OR_RETURN(out.policy, FromProto(spec.dtype_policy()));
  CKPTD_ASSIGN_OR_RETURN(out.intended, FromProto(spec.intended_mode()));
  CKPTD_ASSIGN_OR_RETURN(out.kind, FromProto(spec.handle_kind()));
  out.digests = !spec.skip_digests();
  out.job = JobFrom(spec.job_key());
  out.view = spec.view();
  out.timeout = TimeoutFrom(spec.timeout(), spec.has_timeout());
  out.wait_memory = std::clamp<std::chrono::nanoseconds>(
      FromProto(spec.wait_memory()), std::chrono::nanoseconds(0), timing::kMaxTimeout);
  return out;
}

std::string JobFrom(const std::string& job_key) { return SendableText(job_key, kMaxJobBytes); }

v1::Caller ToProto(const Caller& caller) {
  v1::Caller out;
  out.set_uid(caller.uid);
  out.set_gid(caller.gid);
  out.mutable_groups()->Add(caller.groups.begin(), caller.groups.end());
  return out;
}

Caller FromProto(const v1::Caller& caller) {
  Caller out{caller.uid(), caller.gid(), {caller.groups().begin(), caller.groups().end()}};
  std::sort(out.groups.begin(), out.groups.end());
  return out;
}

v1::ProposeRequest ToProto(uint32_t rank, const LoadRequest& request) {
  v1::ProposeRequest out;
  out.set_rank(static_cast<int32_t>(rank));
  *out.mutable_spec() = ToProto(request);
  out.set_proposal_id(request.proposal_id);
  if (request.guest.has_value()) *out.mutable_guest() = ToProto(*request.guest);
  out.set_passed(request.passed);
  return out;
}

absl::StatusOr<LoadRequest> FromProto(const v1::ProposeRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(LoadRequest out, FromProto(request.spec()));
  out.proposal_id = request.proposal_id();
  if (request.has_guest()) out.guest = FromProto(request.guest());
  out.passed = request.passed();
  return out;
}

namespace {

size_t RowCost(const Shard& shard, size_t row) {
  const auto& tensors = shard.plan.tensors;
  const auto& flats = shard.plan.flats;
  if (row >= tensors.size() + flats.size()) {
    return shard.unexpected[row - tensors.size() - flats.size()].size() + 8;
  }
  if (row >= tensors.size()) return flats[row - tensors.size()].name.size() + 48;
  size_t cost = tensors[row].name.size() + 64 + 10 * tensors[row].shape.size();
  for (const std::string& alias : tensors[row].aliases) cost += alias.size() + 8;
  return cost;
}

void AddRow(const PlannedTensor& tensor, v1::TensorTable& table) {
  for (const std::string& alias : tensor.aliases) {
    table.add_alias_names(alias);
    table.add_alias_tensors(static_cast<uint32_t>(table.names_size()));
  }
  table.add_names(tensor.name);
  table.add_dtypes(static_cast<v1::Dtype>(tensor.dtype));
  table.add_ranks_of_shape(static_cast<uint32_t>(tensor.shape.size()));
  for (const uint64_t size : tensor.shape) table.add_dims(size);
  table.add_offsets(tensor.offset);
  table.add_bytes(tensor.bytes);
  table.add_padded_bytes(tensor.padded_bytes);
}

void AddFlat(const PlannedFlat& flat, v1::TensorTable& table) {
  table.add_flat_names(flat.name);
  table.add_flat_dtypes(static_cast<v1::Dtype>(flat.dtype));
  table.add_flat_offsets(flat.offset);
  table.add_flat_elements(flat.elements);
}

}  // namespace

size_t TableRows(const Shard& shard) {
  return shard.plan.tensors.size() + shard.plan.flats.size() + shard.unexpected.size();
}

v1::TensorTable TensorPage(const Shard& shard, size_t begin, size_t page_size, size_t& next) {
  v1::TensorTable table;
  size_t bytes = 0;
  const auto& tensors = shard.plan.tensors;
  const auto& flats = shard.plan.flats;
  size_t row = begin;
  for (; row < TableRows(shard); ++row) {
    const size_t cost = RowCost(shard, row);
    const size_t count = row - begin;
    if (count > 0 && (bytes + cost > kPageBytes || (page_size > 0 && count == page_size))) break;
    bytes += cost;
    if (row >= tensors.size() + flats.size()) {
      table.add_unexpected_names(shard.unexpected[row - tensors.size() - flats.size()]);
      continue;
    }
    if (row >= tensors.size()) {
      AddFlat(flats[row - tensors.size()], table);
      continue;
    }
    AddRow(tensors[row], table);
    if (!shard.digests.empty()) table.add_digests(shard.digests[row]);
  }
  next = row < TableRows(shard) ? row : 0;
  return table;
}

}  // namespace ckptd

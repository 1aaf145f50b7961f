// Converts between domain values and ckptd.v1 messages. Only this code knows both. Foreign values
// are checked here: sizes of columns, ranges of indices, enum values. Pure functions.
#ifndef CKPTD_SERVER_RPC_CONVERT_H_
#define CKPTD_SERVER_RPC_CONVERT_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/checkpoint_service.pb.h"
#include "ckptd/v1/group_service.pb.h"
#include "ckptd/v1/types.pb.h"
#include "common/base/status.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "server/node/dry_run.h"
#include "server/protocol/domain.h"
#include "server/protocol/links.h"

namespace ckptd {

google::protobuf::Duration ToProto(std::chrono::nanoseconds duration);
std::chrono::nanoseconds FromProto(const google::protobuf::Duration& duration);
google::protobuf::Timestamp ToProto(std::chrono::system_clock::time_point time);

v1::ReadCounters ToProto(const ReadCounters& read);
ReadCounters FromProto(const v1::ReadCounters& read);
v1::SlowFile ToProto(const FileRate& file);
FileRate FromProto(const v1::SlowFile& file);
v1::Progress ToProto(const Progress& progress);
Progress FromProto(const v1::Progress& progress);
v1::Failure ToFailure(const absl::Status& status);
absl::Status FromFailure(const v1::Failure& failure, const Facts& facts);
v1::Checkpoint ToProto(const CheckpointInfo& info);

absl::StatusOr<AttachMode> FromProto(v1::AttachMode mode);  // UNSPECIFIED is SHARED
v1::AttachMode ToProto(AttachMode mode);
absl::StatusOr<std::optional<HandleKind>> FromProto(v1::HandleKind kind);
v1::HandleKind ToProto(std::optional<HandleKind> kind);

absl::StatusOr<RankLayout> FromProto(const v1::RankLayout& layout);
absl::StatusOr<DtypePolicy> FromProto(const v1::DtypePolicy& policy);
v1::Layout ToProto(const LayoutRequest& layout);
absl::StatusOr<LayoutRequest> FromProto(const v1::Layout& layout);

v1::LoadSpec ToProto(const LoadRequest& request);
absl::StatusOr<LoadRequest> FromProto(const v1::LoadSpec& spec);
// For a request with a device map. Errors: ParseMaxMemory's; InvalidArgument INVALID_REQUEST if
// it has a layout, too.
absl::StatusOr<DeviceMapRequest> DeviceMapRequestFrom(const v1::PlanLoadRequest& request);
v1::Caller ToProto(const Caller& caller);
Caller FromProto(const v1::Caller& caller);
// Tells jobs apart, in loads, participants and passed files alike.
std::string JobFrom(const std::string& job_key);
v1::ProposeRequest ToProto(uint32_t rank, const LoadRequest& request);
absl::StatusOr<LoadRequest> FromProto(const v1::ProposeRequest& request);

v1::SourceFile ToProto(const SourceFile& file);
SourceFile FromProto(const v1::SourceFile& file);
v1::PrepareRequest ToProto(const PrepareCall& call);
absl::StatusOr<PrepareCall> FromProto(const v1::PrepareRequest& request);
v1::PrepareResponse ToProto(const PrepareReply& reply);
PrepareReply FromProto(const v1::PrepareResponse& response);
v1::ReadOrder ToProto(const ReadOrder& order);
absl::StatusOr<ReadOrder> FromProto(const v1::ReadOrder& order);
v1::Scatter ToProto(const ScatterCall& call);
// Errors: CheckScatterCall's.
absl::StatusOr<ScatterCall> FromProto(const v1::Scatter& scatter);
v1::ExecuteResponse ToProto(const ReadReport& report);
ReadReport FromProto(const v1::ExecuteResponse& response);
v1::CommitRequest ToProto(const CommitCall& call);
CommitCall FromProto(const v1::CommitRequest& request);

v1::JoinRequest ToProto(const MemberIdentity& identity,
                        const std::vector<ResidentCheckpoint>& residents);
v1::JoinResponse ToProto(const JoinReply& reply);
JoinReply FromProto(const v1::JoinResponse& response);
v1::HeartbeatRequest ToProto(const HeartbeatCall& call);
HeartbeatCall FromProto(const v1::HeartbeatRequest& request);
v1::HeartbeatResponse ToProto(const HeartbeatReply& reply);
HeartbeatReply FromProto(const v1::HeartbeatResponse& response);
Participant FromProto(const v1::JoinLoadRequest& request);
v1::LoadParticipant ToProto(const Participant& participant);
Participant FromProto(const v1::LoadParticipant& participant);
v1::JoinLoadResponse AnswerOf(const absl::Status& outcome);
v1::ParticipantVerdict ToProto(const Verdict& verdict);
Verdict FromProto(const v1::ParticipantVerdict& verdict);
// As FromFailure, cut to a length that may be sent to every rank.
absl::Status FailureFrom(const v1::Failure& failure,
                         const google::protobuf::Map<std::string, std::string>& facts);
MemberIdentity IdentityFrom(const v1::JoinRequest& request);
std::vector<ResidentCheckpoint> ResidentsFrom(const v1::JoinRequest& request);

// Rows [begin, ...) of a shard's table, as many as `page_size` and the message size allow (0: as
// many as fit). `next` is where the following page begins, 0 after the last. Rows are its
// tensors, then its flat parameters, then its unexpected names.
size_t TableRows(const Shard& shard);
v1::TensorTable TensorPage(const Shard& shard, size_t begin, size_t page_size, size_t& next);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_CONVERT_H_

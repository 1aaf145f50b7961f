// Converts between the API's messages and the library's values. Only this code knows both.
// Everything from the daemon is checked here. Errors are DataLoss INVALID_REPLY ("client and
// daemon do not fit together").
#ifndef CKPTD_CLIENT_CPP_CONVERT_H_
#define CKPTD_CLIENT_CPP_CONVERT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/admin_service.pb.h"
#include "ckptd/v1/checkpoint_service.pb.h"
#include "ckptd/v1/types.pb.h"
#include "client/cpp/attach.h"
#include "client/cpp/client.h"
#include "client/cpp/shard.h"
#include "client/cpp/types.h"

namespace ckptd {
inline namespace client {

// To the daemon.
v1::AttachMode ToProto(AttachMode mode);
// Errors: InvalidArgument INVALID_REQUEST if only some tensors have expected shapes, which the
// API cannot express.
absl::Status CheckLayout(const LayoutSpec& layout);
v1::Layout ToProto(const LayoutSpec& layout);
v1::PlanLoadRequest ToProto(const PlanRequest& request);
v1::PlanLoadRequest ToProto(const DeviceMapRequest& request);
v1::LoadCheckpointRequest ToProto(const LoadRequest& request, const std::string& request_id);
google::protobuf::Duration ToProto(std::chrono::milliseconds duration);

// From the daemon.
CheckpointInfo FromProto(const v1::Checkpoint& checkpoint);
PlanSummary FromProto(const v1::PlanLoadResponse& response);
DeviceMap FromProto(const v1::DeviceMap& map);
VerifyResult FromProto(const v1::VerifyCheckpointResponse& response);
LeaseInfo FromProto(const v1::Lease& lease);
DaemonInfo FromProto(const v1::GetDaemonInfoResponse& response);

// Adds one page to `out`. The first page also has what is not paged.
absl::Status AppendSource(const v1::InspectCheckpointResponse& page, SourceInfo& out);

// Adds one page of a shard's tensors. Every tensor must be inside the slab, its size must follow
// from dtype and shape, and every alias must refer to this page.
absl::Status AppendTensors(const v1::TensorTable& page, uint64_t slab_bytes, ShardTable& out);

// How to attach to an acquired shard. The segments must add up to the slab.
absl::StatusOr<AttachRequest> ToAttachRequest(const v1::AcquireShardResponse& response);

// The error for an invalid answer.
absl::Status BadAnswer(const std::string& why);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_CONVERT_H_

// Reads answers that are more than a message to pass on. Everything from the daemon is checked
// here. Errors are DataLoss INVALID_REPLY ("client and daemon do not fit together").
#ifndef CKPTD_CLIENT_CPP_CONVERT_H_
#define CKPTD_CLIENT_CPP_CONVERT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/checkpoint_service.pb.h"
#include "client/cpp/attach.h"
#include "client/cpp/shard.h"
#include "client/cpp/types.h"

namespace ckptd {
inline namespace client {

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

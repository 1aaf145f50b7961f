// Calls take and answer the API's messages (ckptd/v1/*.proto). This file has what helps to use them,
// and what they do not have.
#ifndef CKPTD_CLIENT_CPP_TYPES_H_
#define CKPTD_CLIENT_CPP_TYPES_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/types.pb.h"
#include "common/base/attach_mode.h"
#include "common/layout/layout.h"
#include "common/source/index.h"

// An inline namespace: users write ckptd::Client, and a binary that also links the daemon's code
// cannot confuse two types of one name.
namespace ckptd {
inline namespace client {

using TimePoint = std::chrono::system_clock::time_point;
using Seconds = std::chrono::duration<double>;

// The name in the API without its prefix: "ACTIVE", "TRANSFERRING", "SHARED", "MEMFD".
// "UNSPECIFIED" for values that this client does not know.
std::string NameOf(v1::Checkpoint::State state);
std::string NameOf(v1::Stage stage);
std::string NameOf(v1::AttachMode mode);
std::string NameOf(v1::HandleKind kind);
std::string NameOf(AttachMode mode);

// Any value of the message becomes a time: those out of range are far in the past or future.
TimePoint TimeOf(const google::protobuf::Timestamp& time);
Seconds SecondsOf(const google::protobuf::Duration& duration);

// OK for an ACTIVE checkpoint. Otherwise the reason: the load's own failure, or
// FailedPrecondition NOT_ACTIVE.
absl::Status CheckActive(const v1::Checkpoint& checkpoint);

// The rank form, for LoadSpec.layout. Errors: InvalidArgument INVALID_REQUEST if only some tensors
// have expected shapes, which the API cannot express.
absl::StatusOr<v1::RankLayout> ToRankLayout(const RankLayout& layout);

struct SourceInfo {
  CheckpointIndex index;  // files have their path and size only
  std::string identity;   // hex digest over the files; changes if a file is replaced or written
  uint64_t tensor_count = 0;
  uint64_t tensor_bytes = 0;
  uint64_t value_count = 0;   // of index.values, listed or not
  uint64_t opaque_count = 0;  // likewise
  // for people: what was left out, and irregularities of an index
  std::vector<std::string> remarks;
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_TYPES_H_

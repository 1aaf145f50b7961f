// The results of the client library: plain values, no gRPC. Sizes are bytes, counts are exact,
// times are wall-clock.
#ifndef CKPTD_CLIENT_CPP_TYPES_H_
#define CKPTD_CLIENT_CPP_TYPES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/attach_mode.h"
#include "common/base/handle_kind.h"
#include "common/checkpoint/dtype.h"
#include "common/checkpoint/index.h"

// An inline namespace: users write ckptd::Client, and a binary that also links the daemon's code
// cannot confuse two types of one name.
namespace ckptd {
inline namespace client {

using TimePoint = std::chrono::system_clock::time_point;
using Seconds = std::chrono::duration<double>;

// Values equal those of the API (ckptd.v1).
enum class CheckpointState : uint8_t {
  kUnspecified = 0, kLoading, kActive, kUnloading, kFailed, kTaken,
};
enum class LoadStage : uint8_t {
  kUnspecified = 0, kGathering, kQueued, kOpening, kPlanning, kAllocating, kTransferring,
  kPublishing, kWaitingForMemory,
};

// "ACTIVE", "TRANSFERRING", "SHARED". "UNSPECIFIED" for unknown values.
std::string_view NameOf(CheckpointState state);
std::string_view NameOf(LoadStage stage);
std::string_view NameOf(AttachMode mode);

struct StageTime {
  LoadStage stage = LoadStage::kUnspecified;
  Seconds duration{0};
};

// How far a load has come, over all ranks.
struct LoadProgress {
  LoadStage stage = LoadStage::kUnspecified;
  uint64_t bytes_total = 0;
  uint64_t bytes_done = 0;
  double bytes_per_second = 0;         // 0 before the transfer began
  int32_t slowest_rank = -1;           // -1: unknown
  std::vector<int32_t> waiting_ranks;  // a pending load waits for these
  std::string conflict;                // what one of them loads instead, for people
  std::string no_memory;               // kWaitingForMemory: which clients hold how much, for people
  uint64_t storage_bytes = 0;
  uint64_t mapped_bytes = 0;  // those of them that were read through a mapping of the page cache
  uint64_t direct_bytes = 0;  // those of them that were read past the page cache
  uint64_t sent_bytes = 0;
  uint64_t restored_bytes = 0;          // of this rank, from its daemon's host tier
  std::vector<int32_t> streamed_ranks;  // got their bytes through streams, not through a mapping
  std::vector<StageTime> stages;        // finished ones, in order
};

struct LoadFailure {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  std::string reason;
  int32_t rank = -1;  // -1: concerns no single rank
};

struct CheckpointInfo {
  std::string name;    // checkpoints/{id}
  std::string source;  // absolute path; its file URI if that is not UTF-8
  CheckpointState state = CheckpointState::kUnspecified;
  AttachMode intended_mode = AttachMode::kShared;
  std::optional<HandleKind> handle_kind;  // unset: from an older daemon
  int32_t rank = 0;
  int32_t world_size = 0;
  uint64_t epoch = 0;
  uint64_t slab_bytes = 0;    // of this rank
  uint32_t tensor_count = 0;  // of this rank
  std::string plan_digest;
  std::string identity;
  std::string source_identity;  // SourceInfo::identity of its files
  bool digests = false;
  bool pinned = false;
  uint32_t lease_count = 0;
  LoadProgress progress;
  // The failure of the load. When ACTIVE: of the last load that was to fill ranks without it.
  std::optional<LoadFailure> failure;
  uint32_t resident_ranks = 0;  // ranks that hold their shard, when ACTIVE; 0: from an older daemon
  std::optional<TimePoint> create_time;
  std::optional<TimePoint> active_time;
  std::string layout;
  std::string served_from;  // the checkpoint that owns the memory; empty: this one does
};

// OK for an ACTIVE checkpoint. Otherwise the reason: the load's own failure, or
// FailedPrecondition NOT_ACTIVE.
absl::Status CheckActive(const CheckpointInfo& checkpoint);

struct FileSize {
  std::string path;
  uint64_t bytes = 0;
};

struct SourceTensor {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;          // global
  uint32_t file = 0;    // of the first piece: index into SourceInfo::files
  uint64_t offset = 0;  // absolute, in that file
  uint64_t bytes = 0;
};

struct SourceInfo {
  std::string source;    // as CheckpointInfo::source; paths of files likewise
  std::string identity;  // hex digest over the files; changes if a file is replaced or written
  std::vector<FileSize> files;
  uint64_t tensor_count = 0;
  uint64_t tensor_bytes = 0;
  std::vector<SourceTensor> tensors;
  std::map<std::string, std::string> aliases;  // alias -> tensor
  std::map<std::string, std::string> metadata;
  // for people: what was left out, and irregularities of an index
  std::vector<std::string> remarks;
};

struct RankBytes {
  int32_t rank = 0;
  uint64_t slab_bytes = 0;    // with alignment and padding
  uint64_t tensor_bytes = 0;
  uint32_t tensor_count = 0;
  uint64_t received_bytes = 0;  // sent to this rank by the reader
};

struct PlanSummary {
  std::vector<RankBytes> ranks;
  std::vector<FileSize> files;  // distinct bytes read from each
  uint64_t storage_bytes = 0;
  uint64_t peak_rank_bytes = 0;
  uint64_t total_slab_bytes = 0;
  uint64_t distinct_bytes = 0;  // of tensors; equal shards count once
  std::string plan_digest;
};

struct VerifyResult {
  uint64_t tensor_count = 0;
  uint64_t bytes = 0;
  std::vector<std::string> mismatched;  // empty: verified
  // The file of mismatched[i], the first if there are several. Empty if it is not known.
  std::vector<std::string> files;
  int32_t rank = -1;                    // rank of the shard; -1: files
};

struct LeaseInfo {
  std::string name;
  std::string checkpoint;
  AttachMode mode = AttachMode::kShared;
  int32_t pid = 0;  // 0: unknown
  uint32_t uid = 0;
  bool connected = false;
  std::optional<TimePoint> create_time;
};

struct MemoryInfo {
  std::string tier;
  std::string why;
  uint64_t budget_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t arena_bytes = 0;
  uint64_t arena_target_bytes = 0;
  std::string arena_why;  // reason of the arena's size, for people
  uint64_t huge_page_bytes = 0;
  uint64_t lingering_bytes = 0;
  std::string device_uuid;       // for tier cuda
  uint64_t staging_bytes = 0;    // pinned host memory through which bytes for the GPU pass
  uint64_t host_tier_bytes = 0;  // for pristine copies of shards that EXCLUSIVE clients took
  uint64_t host_tier_used_bytes = 0;
};

struct MemberInfo {
  int32_t rank = 0;
  std::string address;
  std::string host;
  int32_t pid = 0;
  bool joined = false;
  Seconds since_heartbeat{0};
};

struct DaemonInfo {
  std::string version;
  std::string job;
  int32_t rank = 0;
  int32_t world_size = 0;
  uint64_t epoch = 0;
  int32_t pid = 0;
  std::optional<TimePoint> start_time;
  std::string state;
  std::string detail;
  MemoryInfo memory;
  std::vector<MemberInfo> members;
  std::map<std::string, std::string> config;
  std::string workload_socket;
  std::string fd_socket;
  std::string peer_address;
  uint32_t checkpoint_count = 0;
  uint32_t lease_count = 0;
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_TYPES_H_

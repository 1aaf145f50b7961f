// Vocabulary of the daemon: loads, checkpoints and their states. Plain values,
// no gRPC; server/rpc/convert knows the proto twins.
#ifndef CKPTD_SERVER_PROTOCOL_DOMAIN_H_
#define CKPTD_SERVER_PROTOCOL_DOMAIN_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/caller.h"
#include "common/layout/layout.h"
#include "common/plan/plan.h"
#include "common/source/index.h"
#include "server/comm/peer_memory.h"
#include "server/memory/memory.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// Values equal ckptd.v1.Checkpoint.State.
enum class CheckpointState : uint8_t { kLoading = 1, kActive, kFailed, kTaken };
std::string_view NameOf(CheckpointState state);

// Values equal ckptd.v1.Stage.
enum class Stage : uint8_t {
  kUnspecified = 0, kGathering, kQueued, kOpening, kPlanning, kAllocating, kTransferring,
  kPublishing, kWaitingForMemory,
};
std::string_view NameOf(Stage stage);

struct Progress {
  Stage stage = Stage::kUnspecified;
  uint64_t bytes_total = 0;
  uint64_t bytes_done = 0;
  double bytes_per_second = 0;
  int32_t slowest_rank = -1;
  FileRate slowest_file;  // as FileTimes::Slowest, of all readers
  std::vector<int32_t> waiting_ranks;
  std::string conflict;   // what one of them loads instead, for people
  std::string no_memory;  // kWaitingForMemory: who holds what, for people
  ReadCounters read;
  uint64_t sent_bytes = 0;
  uint64_t restored_bytes = 0;  // of this rank, from its host tier
  std::vector<int32_t> streamed_ranks;  // whose memory could not be mapped
  std::vector<std::pair<Stage, std::chrono::nanoseconds>> stages;  // finished ones
};

// Rule form as text, or one rank's own statement.
using LayoutRequest = std::variant<std::string, std::shared_ptr<const RankLayout>>;

// What a client asks for.
struct LoadRequest {
  std::string source;  // absolute
  LayoutRequest layout;
  DtypePolicy policy;
  AttachMode intended = AttachMode::kShared;
  std::optional<HandleKind> kind = {};  // unset: as each rank's memory prefers
  bool digests = true;
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  // How long to wait for memory that clients hold. No part of the identity, as the timeout.
  std::chrono::nanoseconds wait_memory{0};
  // The job of the client; empty: not known. Ranks of two jobs do not make one load. No part of
  // the identity.
  std::string job = {};
  // Tells this proposal from others, also from an equal one. No part of the identity.
  std::string proposal_id = {};
  // A client of another user, for whom nothing is read that it could not read itself; unset: one
  // whom the daemons trust. Its user is part of the identity, so that what is loaded for one user
  // is never another's; where the files are the same, it lies in the same memory, as a view.
  std::optional<Caller> guest = {};
  // The client has passed files of the source to its daemon: rank 0's may be about to come, too. No
  // part of the identity.
  bool passed = false;
  // The text of a view, as view::ReadView takes it; empty: none. Part of the identity.
  std::string view = {};
};

bool IsRankForm(const LoadRequest& request);
// Digest of the fields all ranks share: source, form, rules, policy, view, digests,
// whether the memory is meant to be EXCLUSIVE, whether to be CUDA_IPC (the other
// kinds are what a tier has by itself), and a guest's user.
uint64_t LoadKey(const LoadRequest& request);
// Digest of what one rank asks for: LoadKey and, in rank form, its layout.
uint64_t RequestDigest(const LoadRequest& request);
uint64_t LayoutDigest(const RankLayout& layout);

// A request with its identity, which is computed once where the request comes in: the digest of a
// layout with many tensors takes milliseconds. Fields that are part of the identity stay as they
// are; the others (timeout, wait_memory, job, proposal_id) may change.
struct IdentifiedRequest {
  IdentifiedRequest() : IdentifiedRequest(LoadRequest()) {}
  IdentifiedRequest(LoadRequest asked);  // NOLINT: what takes this may be given a plain request

  LoadRequest request;
  uint64_t load_key = 0;            // LoadKey
  uint64_t digest = 0;              // RequestDigest
  uint64_t digest_with_digests = 0;  // RequestDigest of the same request with digests on
};
// "fsdp:4" or "requested by each rank".
std::string DescribeLayout(const LoadRequest& request);
// A short view as it is, a longer one by its size and digest. Empty: none.
std::string DescribeView(const LoadRequest& request);
// Names of the identity's fields in which `other` differs from `request`.
std::vector<std::string> DifferingFields(const LoadRequest& request, const LoadRequest& other);

// The immutable facts of a loaded shard, shared with readers of its table.
struct Shard {
  RankPlan plan;  // ops dropped: only what describes the slab
  // Rank form: tensors of the source that this rank's statement does not name.
  std::vector<std::string> unexpected;
  std::vector<uint64_t> digests;
  // Where tensor i was read from: paths[file_of[i]], of several files the first; without
  // bytes, past the end.
  std::vector<std::string> paths;
  std::vector<uint32_t> file_of;
};

// What a client sees of a checkpoint.
struct CheckpointInfo {
  std::string name;
  std::string source;
  CheckpointState state = CheckpointState::kLoading;
  AttachMode intended = AttachMode::kShared;
  HandleKind kind = HandleKind::kMemfd;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint64_t epoch = 0;
  uint64_t slab_bytes = 0;
  size_t tensor_count = 0;
  uint64_t plan_digest = 0;
  uint64_t identity = 0;
  uint64_t source_identity = 0;  // of the files that it is from; 0: not known yet
  bool digests = false;
  bool pinned = false;
  uint32_t leases = 0;
  Progress progress;
  // When kFailed; when kActive: of the last load that was to fill the ranks without it.
  absl::Status failure;
  uint32_t resident_ranks = 0;  // that hold theirs, as the leader knows; when kActive
  std::chrono::system_clock::time_point created;
  std::chrono::system_clock::time_point activated;
  std::string layout;
  std::string view;  // DescribeView
  // The checkpoint whose memory it is a view of; empty: it has its own.
  std::string served_from;
  std::optional<uid_t> loaded_for;  // a guest's user; unset: clients whom the daemon trusts
};

// A checkpoint a daemon still holds, as it tells a (new) leader.
struct ResidentCheckpoint {
  std::string name;
  uint64_t load_key = 0;
  std::vector<SourceFile> files;
  std::vector<uint64_t> request_digests;  // per rank
};

// Leader to member: everything a rank needs to plan and allocate its part.
struct PrepareCall {
  uint64_t epoch = 0;
  std::string name;
  LoadRequest request;  // rank form: the layout of that rank
  std::shared_ptr<const CheckpointIndex> index;
  uint64_t rank_digest = 0;
  uint64_t plan_digest = 0;
  std::vector<uint64_t> request_digests;
  bool members_read = false;  // and map each other's memory
  bool unmapped = false;      // the leader has let go of all that it had mapped of this rank
  // Among loads that wait for memory, the lowest gets it first; 0: this load does not wait.
  uint64_t order = 0;
};

struct PrepareReply {
  bool resident = false;
  uint64_t rank_digest = 0;
  std::vector<PeerSlab::PeerSegment> segments;
  std::string memory_endpoint;
  std::vector<uint64_t> owned_segments;
  std::string device;  // UUID of the GPU whose memory it is; empty: host memory
  std::string communicator;     // what this rank can join, "NCCL 2.30.7"; empty: none
  std::string no_communicator;  // why none
  std::string communicator_id;  // of the one it is in, kept from an earlier load; empty: none
  bool has_leases = false;  // a client holds a shard of this rank, and may be at work
};

struct CommitCall {
  uint64_t epoch = 0;
  std::string name;
  uint64_t tensor_bytes = 0;    // that readers placed or sent
  uint64_t streamed_bytes = 0;  // of them, sent
  uint64_t carried_bytes = 0;   // of these, what came to the leader while it read for others
  // Digests of what one reader placed alone; else empty, and the rank computes its own.
  std::vector<uint64_t> digests;
  Progress progress;
};

// Random, for names, incarnations, tokens and secrets: 2 * bytes hex digits.
std::string RandomHex(size_t bytes);

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_DOMAIN_H_

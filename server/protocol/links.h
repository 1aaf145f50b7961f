// Seams between the daemons of a group. Implemented over gRPC in server/rpc and
// in memory by tests. All calls block, at most until their deadline, and return
// Unavailable RANK_LOST naming the rank when it does not answer.
#ifndef CKPTD_SERVER_PROTOCOL_LINKS_H_
#define CKPTD_SERVER_PROTOCOL_LINKS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/protocol/scatter_call.h"
#include "server/protocol/domain.h"
#include "server/protocol/identity.h"
#include "server/protocol/participant.h"
#include "server/protocol/reading.h"
#include "server/transfer/frames.h"

namespace ckptd {

// Calls to ranks at once, each of which holds a thread.
constexpr size_t kMostCalls = 512;

// The leader's half of one member's Execute call. One thread.
class ExecuteStream {
 public:
  virtual ~ExecuteStream() = default;  // a stream that was not finished aborts
  // False when the member is gone; Finish then says why.
  virtual bool Send(const Progress& progress) = 0;
  // Tells the member that the leader's own reading is done, and waits for the
  // member's part of the work: what it has read.
  virtual absl::StatusOr<ReadReport> Finish() = 0;
};

// What the leader asks of a member for the time of a transfer.
struct ExecuteCall {
  uint64_t epoch = 0;
  std::string name;
  Deadline deadline;
  ReadOrder read;  // empty: it reads nothing
  std::optional<ScatterCall> scatter = {};  // where a communicator brings its bytes
};

// A reader's introduction to a rank it sends a load's bytes to.
struct SinkCall {
  uint64_t epoch = 0;
  std::string name;    // of the checkpoint
  std::string secret;  // the group's
  uint32_t from_rank = 0;
  Deadline deadline;
};

// One member as the leader reaches it. Thread-safe.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, Deadline deadline) = 0;
  virtual absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall& call) = 0;
  // For the bytes of a load that the member has prepared, when its memory cannot be
  // mapped. Does not block: it connects with the first frame.
  virtual std::unique_ptr<TransferSink> OpenSink(const SinkCall& call) = 0;
  // To a rank that held its shard already: those of the others are there, too.
  virtual absl::Status Commit(const CommitCall& call, Deadline deadline) = 0;
  virtual absl::Status Abort(const std::string& name, const absl::Status& why,
                             Deadline deadline) = 0;
  // The load waits for memory: what it was given there goes back.
  virtual absl::Status GiveBack(const std::string& name, Deadline deadline) = 0;
  // Whether the shard of that checkpoint is resident there.
  virtual absl::StatusOr<bool> Holds(const std::string& name, Deadline deadline) = 0;
  // OK when that process still answers on its port.
  virtual absl::Status Probe(Deadline deadline) = 0;
  // The member was dropped: ends the calls and streams in flight, and later ones
  // but Abort at once, as RANK_LOST with `why`. A process that stands still keeps its
  // connections open and would otherwise be waited for until their deadlines.
  virtual void Close(const std::string& why) { (void)why; }
};

struct JoinReply {
  uint64_t epoch = 0;
  std::string incarnation;  // of the leader
  std::string secret;
  std::string version;      // of the leader
  std::chrono::nanoseconds heartbeat_interval = std::chrono::seconds(1);
  std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(5);
};

struct HeartbeatCall {
  uint32_t rank = 0;
  std::string incarnation;
  // Epoch of HeartbeatReply::members as this member was last told them; 0: not at all.
  uint64_t members_epoch = 0;
  std::optional<ReadingNow> reading;
  // LoadRequest::proposal_id of what nobody waits for any more.
  std::vector<std::string> abandoned = {};
  std::set<std::string> held = {};         // checkpoints that are ACTIVE there
  std::vector<std::string> has_room = {};  // loads that would get the memory now that they lacked
  // All of its clients that take part in loads.
  std::vector<Participant> participants = {};
};

struct HeartbeatReply {
  uint64_t epoch = 0;
  std::string incarnation;
  std::vector<uint32_t> missing_ranks;
  std::vector<std::pair<std::string, Progress>> loads;
  // Incarnations of who has joined, rank 0 too, since HeartbeatCall::members_epoch; empty ones of
  // who has gone. To who knows nobody: all, once they are all.
  std::map<uint32_t, std::string> members;
  std::vector<Verdict> verdicts = {};  // on HeartbeatCall::participants
  // Of what the member holds: on how many ranks it is.
  std::map<std::string, uint32_t> residences = {};
};

// The leader as a member reaches it. Thread-safe.
class LeaderLink {
 public:
  virtual ~LeaderLink() = default;
  virtual absl::StatusOr<JoinReply> Join(const MemberIdentity& identity,
                                         const std::vector<ResidentCheckpoint>& residents,
                                         Deadline deadline) = 0;
  virtual absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatCall& call,
                                                   Deadline deadline) = 0;
  // The name of the checkpoint that the request leads to.
  virtual absl::StatusOr<std::string> Propose(uint32_t rank, const LoadRequest& request,
                                              Deadline deadline) = 0;
  // The ranks that do not hold their shard of that checkpoint now.
  virtual absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string& name,
                                                         Deadline deadline) = 0;
  // Gives that load up for all ranks, without waiting for its end.
  virtual absl::Status CancelLoad(uint32_t rank, const std::string& name, Deadline deadline) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_LINKS_H_

// Seam: a communicator of the group, which carries bytes between the devices of its ranks.
// Backend: server/comm/nccl. All ranks must issue the same operations in the same order; the
// callers see to that.
#ifndef CKPTD_SERVER_COMM_GROUP_COMM_H_
#define CKPTD_SERVER_COMM_GROUP_COMM_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// One rank's end. CommunicatorCache owns it; one thread at a time uses it. Ranks in calls are the
// communicator's own, errors name the group's. After an error it cannot be used any more, and all
// other ranks get errors of their own. The error is returned at once, while running operations
// still end. The destructor waits for them, which may take seconds. Until then memory that they
// may touch is kept, even if it is freed.
class GroupComm {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~GroupComm() = default;
  // Begins an exchange: operations that do not wait for each other. Their memory must be on this
  // rank's device and must not change until Wait. `bytes` > 0.
  virtual absl::Status Begin() = 0;
  virtual absl::Status Send(const StagedMemory& from, uint64_t offset, uint64_t bytes,
                            uint32_t peer) = 0;
  virtual absl::Status Receive(const StagedMemory& to, uint64_t offset, uint64_t bytes,
                               uint32_t peer) = 0;
  // Copies these bytes of `memory` from `root` to all ranks.
  virtual absl::Status Broadcast(const StagedMemory& memory, uint64_t offset, uint64_t bytes,
                                 uint32_t root) = 0;
  virtual absl::Status End(Deadline deadline) = 0;
  // Returns when all exchanges are done. Errors: DeadlineExceeded DEADLINE names the ranks of the
  // operations that are not done.
  virtual absl::Status Wait(Deadline deadline) = 0;
  // Ends the communicator regularly. Returns when all ranks have called it.
  virtual absl::Status Close(Deadline deadline) = 0;
  // Replaces GroupCommOptions::interrupted.
  virtual void Interrupt(std::function<absl::Status()> interrupted) = 0;
};

struct GroupCommOptions {
  std::string id;  // MakeId's result on one rank, the same on all ranks
  uint32_t rank = 0;
  std::vector<uint32_t> names;  // per rank of the communicator, its rank in the group
  std::string name;             // name in logs
  // Called now and then by a thread that waits. An error ends the wait with it.
  std::function<absl::Status()> interrupted;
};

// Makes communicators. Thread-safe.
class GroupComms {
 public:
  virtual ~GroupComms() = default;
  // Such as "NCCL 2.30.7". Ranks may only join each other if their versions are equal.
  virtual std::string version() const = 0;
  // An id for one communicator. This process must live until all ranks have joined.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Returns when all ranks have joined. Errors: DeadlineExceeded RANK_MISSING, NCCL_FAILED.
  virtual absl::StatusOr<std::unique_ptr<GroupComm>> Join(GroupCommOptions options,
                                                          GroupComm::Deadline deadline) = 0;
  // Waits, up to seconds, for the teardown of communicators whose Join has failed. Join returns
  // its error before that.
  virtual void AwaitEnds() {}
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_GROUP_COMM_H_

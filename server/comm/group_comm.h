// Seam: a communicator of the group, which carries bytes between the devices of its ranks.
// Backend: server/comm/nccl. The order of operations is the callers' to keep equal.
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

// One rank's end. Used by one thread at a time. Ranks here are the communicator's own, errors
// name the group's. After an error it is of no more use, here and, by their own errors, on
// all ranks. That error comes at once: what the communicator still does ends meanwhile, and
// destruction, which may take seconds, waits for it. Until then memory that it may touch is kept,
// also if it is freed.
class GroupComm {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~GroupComm() = default;
  // An exchange: operations that do not wait for each other. Memory is of this rank's device,
  // and stays as it is until Wait. `bytes` > 0.
  virtual absl::Status Begin() = 0;
  virtual absl::Status Send(const StagedMemory& from, uint64_t offset, uint64_t bytes,
                            uint32_t peer) = 0;
  virtual absl::Status Receive(const StagedMemory& to, uint64_t offset, uint64_t bytes,
                               uint32_t peer) = 0;
  // The same bytes of `memory` on all ranks, as `root` has them.
  virtual absl::Status Broadcast(const StagedMemory& memory, uint64_t offset, uint64_t bytes,
                                 uint32_t root) = 0;
  virtual absl::Status End(Deadline deadline) = 0;
  // Returns when every exchange that was ended is done. Errors: DeadlineExceeded DEADLINE names
  // the ranks that take part in what stands still.
  virtual absl::Status Wait(Deadline deadline) = 0;
  // The clean end: returns when all ranks have called it.
  virtual absl::Status Close(Deadline deadline) = 0;
  // Replaces the one of GroupCommOptions: asked while something is waited for.
  virtual void Interrupt(std::function<absl::Status()> interrupted) = 0;
};

struct GroupCommOptions {
  std::string id;  // MakeId's of one rank, the same on all
  uint32_t rank = 0;
  std::vector<uint32_t> names;  // per rank of the communicator, which of the group it is
  std::string name;             // in logs
  // Asked while something is waited for, on the waiting thread; an error ends the wait.
  std::function<absl::Status()> interrupted;
};

// How communicators are made. Thread-safe.
class GroupComms {
 public:
  virtual ~GroupComms() = default;
  // "NCCL 2.30.7": ranks join each other only if they agree.
  virtual std::string version() const = 0;
  // Good for one communicator; this process must live until all have joined.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Returns when all ranks have joined. Errors: DeadlineExceeded RANK_MISSING, NCCL_FAILED.
  virtual absl::StatusOr<std::unique_ptr<GroupComm>> Join(GroupCommOptions options,
                                                          GroupComm::Deadline deadline) = 0;
  // Waits, it may be for seconds, for what is left of those that could not be joined: their errors
  // come before.
  virtual void AwaitEnds() {}
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_GROUP_COMM_H_

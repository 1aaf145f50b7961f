// One rank's end of an NCCL communicator, and waiting for the others with an end.
#ifndef CKPTD_SERVER_COMM_NCCL_COMMUNICATOR_H_
#define CKPTD_SERVER_COMM_NCCL_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/device.h"
#include "server/comm/nccl/nccl_library.h"

namespace ckptd {

struct CommunicatorOptions {
  NcclUniqueId id{};  // rank 0's, the same on all ranks; good for one communicator
  uint32_t rank = 0;
  uint32_t world_size = 0;  // 2 or more: alone there is nobody to talk to
  // What errors call each rank; empty: its number here.
  std::vector<uint32_t> names;
  // Blocks of the GPU that NCCL's kernels hold, and with them its buffers: 4 to 8.
  int max_ctas = 8;
  std::string name;  // in NCCL's log
  // Asked while something is waited for, on the waiting thread; an error ends the wait with it.
  std::function<absl::Status()> interrupted;
};

// Used by one thread at a time: NCCL's groups belong to threads, and nobody else may be in a call
// on the communicator. All ranks issue the same operations in the same order. Every wait has a
// deadline and names the ranks that it waits for.
//
// An error of any call begins to abort the communicator, and comes before that is done: others
// should hear it first. Abort, or destruction, waits for it: then its kernels have ended. Memory
// that was being received has unspecified content, other ranks learn it by their own deadlines (or
// by whoever tells them), and every later call answers that error. There is no other recovery than
// a new communicator with a new id.
//
// NCCL's own calls that end a communicator have no deadline. They are made on a thread of their
// own; if one does not return within kEndPatience, that thread and NCCL's memory are left behind,
// and what waits for it, or the log, says that the daemon must be started again. A group that was
// not in its stream by then may still come there: until the call returns the device is Busy.
class Communicator {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  static constexpr int kLeastCtas = 4;
  static constexpr int kMostCtas = 8;
  static constexpr std::chrono::seconds kEndPatience{5};

  // Make and Enter.
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(
      std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
      CommunicatorOptions options, Deadline deadline);
  // One that has not joined the others. Errors: InvalidArgument INVALID_REQUEST for options that
  // cannot be, with the fact "rank".
  static absl::StatusOr<std::unique_ptr<Communicator>> Make(
      std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
      CommunicatorOptions options);
  // Once, before all others. Returns when all ranks have joined. Errors: DeadlineExceeded
  // RANK_MISSING; those of NcclLibrary::Check, also for two ranks on one GPU. All carry the fact
  // "rank". And what `interrupted` says, as it says it.
  absl::Status Enter(Deadline deadline);
  // Aborts unless Close was through: peers may still be waiting.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // A group: operations of one kernel, which do not wait for each other. On a stream they run
  // behind what the stream holds, and what is queued on it afterwards runs behind them. Memory is
  // the device's, and stays until the stream has passed. A failed operation fails the group.
  absl::Status Begin();
  absl::Status Send(CUdeviceptr from, uint64_t bytes, uint32_t peer, CUstream stream);
  absl::Status Receive(CUdeviceptr to, uint64_t bytes, uint32_t peer, CUstream stream);
  // From `root` to all ranks. `from` is looked at on the root alone; the addresses may be equal.
  absl::Status Broadcast(CUdeviceptr from, CUdeviceptr to, uint64_t bytes, uint32_t root,
                         CUstream stream);
  // Returns when the kernel is in its stream: only then does the stream, or an event in it, wait
  // for it. The first operation with a peer waits until that peer has come as far.
  absl::Status End(Deadline deadline);

  // Returns when `stream` has done all that was queued. Errors: DeadlineExceeded DEADLINE names
  // the ranks of the operations that were begun since the last good Wait, which take part in what
  // stands still; DEVICE_FAILED; those of NcclLibrary::Check.
  absl::Status Wait(CUstream stream, Deadline deadline);

  // The clean end, once all streams were waited for: returns when all ranks have called it.
  absl::Status Close(Deadline deadline);
  // The unclean one: returns when it, or what an error has begun of it, is over. OK if there was
  // nothing to abort.
  absl::Status Abort();
  // In place of CommunicatorOptions::interrupted from now on.
  void Interrupt(std::function<absl::Status()> interrupted) {
    interrupted_ = std::move(interrupted);
  }

  uint32_t rank() const { return options_.rank; }

 private:
  struct Ending;  // a call on a thread of its own
  Communicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
               CommunicatorOptions options);

  absl::Status CreateHandle();
  absl::Status CheckPeer(uint32_t peer, uint64_t bytes) const;
  absl::Status Operate(const char* doing, uint32_t peer, ncclResult_t result);
  // What NCCL says of the communicator by now; OK also while it is in progress.
  absl::Status Look(const std::string& doing, bool& in_progress);
  // Until NCCL is no longer in progress.
  absl::Status AwaitReady(const std::string& doing, const std::set<uint32_t>& ranks,
                          Deadline deadline, const char* reason);
  // What whoever uses it says in between.
  absl::Status Interrupted() const;
  // One turn of a wait: looks at the deadline, pauses.
  absl::Status Pause(const std::string& doing, const std::set<uint32_t>& ranks, Deadline deadline,
                     const char* reason, int turn) const;
  // Begins to abort and remembers; answers `status` with the rank.
  absl::Status Fail(absl::Status status);
  // The same, without: whose fault it is, `status` says itself, if anybody's.
  absl::Status GiveUp(absl::Status status);
  // Lets ncclCommAbort run.
  absl::Status BeginAbort();
  // Lets ncclCommAbort or ncclCommDestroy, by `end`, run; the handle is gone afterwards.
  absl::Status BeginEnd(decltype(&ncclCommAbort) end, const char* doing);
  // Until that has returned. OK if there is none, and once its answer was given.
  absl::Status AwaitEnd();
  std::set<uint32_t> Others() const;
  // For people: what the ranks are called, "3" or "1, 2".
  uint32_t NameOf(uint32_t rank) const;
  std::string NamesOf(const std::set<uint32_t>& ranks) const;

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<CudaDevice> device_;
  const CommunicatorOptions options_;
  std::function<absl::Status()> interrupted_;
  ncclComm_t handle_ = nullptr;
  std::shared_ptr<Ending> ending_;  // of the handle, until it was waited for
  bool in_group_ = false;
  bool launching_ = false;  // a group that was ended is not in its stream yet
  std::set<uint32_t> group_ranks_;  // of the group that is being made
  std::set<uint32_t> begun_ranks_;  // of all since the last good Wait
  absl::Status error_;              // the first one
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_COMMUNICATOR_H_

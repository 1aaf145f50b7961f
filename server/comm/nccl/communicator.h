// One rank's end of an NCCL communicator. All waits for the other ranks have deadlines.
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
  NcclUniqueId id{};  // made by rank 0, the same on all ranks; for one communicator only
  uint32_t rank = 0;
  uint32_t world_size = 0;  // at least 2
  // How errors call each rank. Empty: by its number here.
  std::vector<uint32_t> names;
  // Thread blocks of the GPU that NCCL's kernels may occupy, 4 to 8. NCCL's buffers grow with
  // them.
  int max_ctas = 8;
  std::string name;  // name in NCCL's log
  // Called now and then by a thread that waits. An error ends the wait with it.
  std::function<absl::Status()> interrupted;
};

// NcclComms makes it. One thread at a time uses it: NCCL's groups belong to threads, and calls on
// a communicator must not overlap. All ranks issue the same operations in the same order. Every
// wait has a deadline, and its error names the ranks that it waits for.
//
// An error of any call starts to abort the communicator. The call returns before the abort is
// done, so that others hear of the error first. Abort and the destructor wait for it; then its
// kernels have ended. Memory that was being received has unspecified content. Other ranks find
// out by their own deadlines, or are told by the leader. Every later call returns the first
// error. The only recovery is a new communicator with a new id.
//
// NCCL's own calls that end a communicator have no deadline, so they run on a thread of their
// own. If one does not return within kEndTimeout, that thread and NCCL's memory are left behind,
// and the error or the log asks for a restart of the daemon. A group that was not yet in its
// stream may still be launched there. So until the call returns the device is Busy.
class Communicator {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  static constexpr int kLeastCtas = 4;
  static constexpr int kMostCtas = 8;
  static constexpr std::chrono::seconds kEndTimeout{5};

  // Make and Enter.
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(
      std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
      CommunicatorOptions options, Deadline deadline);
  // Makes one that has not joined the others. Errors: InvalidArgument INVALID_REQUEST for
  // impossible options, with the fact "rank".
  static absl::StatusOr<std::unique_ptr<Communicator>> Make(
      std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
      CommunicatorOptions options);
  // Joins the other ranks. Call it once, before all other calls. Returns when all ranks have
  // joined. Errors: DeadlineExceeded RANK_MISSING, and those of NcclLibrary::Check, for example
  // for two ranks on one GPU. They carry the fact "rank". Errors of `interrupted` are returned
  // unchanged.
  absl::Status Enter(Deadline deadline);
  // Aborts unless Close succeeded, because peers may still be waiting.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // A group is a set of operations in one kernel that do not wait for each other. They run after
  // all earlier work of the stream, and before all later work. Their memory must be on this
  // device and stay until they have ended. A failed operation fails the group.
  absl::Status Begin();
  absl::Status Send(CUdeviceptr from, uint64_t bytes, uint32_t peer, CUstream stream);
  absl::Status Receive(CUdeviceptr to, uint64_t bytes, uint32_t peer, CUstream stream);
  // Copies from `root` to all ranks. `from` is used on the root only. Both addresses may be
  // equal.
  absl::Status Broadcast(CUdeviceptr from, CUdeviceptr to, uint64_t bytes, uint32_t root,
                         CUstream stream);
  // Launches the group. Returns when its kernel is in the stream; only from then on do the stream
  // and its events wait for it. The first operation with a peer waits until that peer has also
  // come to it.
  absl::Status End(Deadline deadline);

  // Returns when `stream` has done all its work. Errors: DeadlineExceeded DEADLINE names the
  // ranks of the operations since the last successful Wait; DEVICE_FAILED; those of
  // NcclLibrary::Check.
  absl::Status Wait(CUstream stream, Deadline deadline);

  // Ends the communicator regularly, after all streams were waited for. Returns when all ranks
  // have called it.
  absl::Status Close(Deadline deadline);
  // Aborts the communicator, or waits for an abort that an error has started. OK if there was
  // nothing to abort.
  absl::Status Abort();
  // Replaces CommunicatorOptions::interrupted.
  void Interrupt(std::function<absl::Status()> interrupted) {
    interrupted_ = std::move(interrupted);
  }

  uint32_t rank() const { return options_.rank; }

 private:
  struct EndCall;  // a call on a thread of its own that ends the communicator
  Communicator(std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
               CommunicatorOptions options);

  absl::Status CreateHandle();
  absl::Status CheckPeer(uint32_t peer, uint64_t bytes) const;
  absl::Status Operate(const char* doing, uint32_t peer, ncclResult_t result);
  // Asks NCCL for the state of the communicator. OK also while it is in progress.
  absl::Status Poll(const std::string& doing, bool& in_progress);
  // Waits until NCCL is no longer in progress.
  absl::Status AwaitReady(const std::string& doing, const std::set<uint32_t>& ranks,
                          Deadline deadline, const char* reason);
  // The result of `interrupted`.
  absl::Status Interrupted() const;
  // One pause in a wait. Returns an error once the deadline has passed.
  absl::Status Pause(const std::string& doing, const std::set<uint32_t>& ranks, Deadline deadline,
                     const char* reason, int attempt) const;
  // As AbortWith, and adds this rank to `status`.
  absl::Status Fail(absl::Status status);
  // Starts to abort. Keeps `status` for all later calls, and returns it.
  absl::Status AbortWith(absl::Status status);
  // Starts ncclCommAbort.
  absl::Status BeginAbort();
  // Starts `end` (ncclCommAbort or ncclCommDestroy). The handle must not be used afterwards.
  absl::Status BeginEnd(decltype(&ncclCommAbort) end, const char* doing);
  // Waits until that call has returned, and returns its result once. OK if there is none.
  absl::Status AwaitEnd();
  std::set<uint32_t> Others() const;
  // Names of ranks for people: "3" or "1, 2".
  uint32_t NameOf(uint32_t rank) const;
  std::string NamesOf(const std::set<uint32_t>& ranks) const;

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<CudaDevice> device_;
  const CommunicatorOptions options_;
  std::function<absl::Status()> interrupted_;
  ncclComm_t handle_ = nullptr;
  std::shared_ptr<EndCall> end_call_;  // set until AwaitEnd
  bool in_group_ = false;
  bool launching_ = false;          // a launched group may not be in its stream yet
  std::set<uint32_t> group_ranks_;  // of the group that is being made
  std::set<uint32_t> begun_ranks_;  // of all groups since the last successful Wait
  absl::Status error_;              // the first error
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_COMMUNICATOR_H_

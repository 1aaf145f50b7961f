// One rank's part in a scatter: sends the steps that it reads, receives the others straight into
// its slab, and passes on what its replicas need. README.md has the specification.
//
// The load is a pipeline. In each *pipeline step* every reader sends one step of the files, and
// replicas pass on the step that they received in the pipeline step before.
#ifndef CKPTD_SERVER_COLLECTIVE_SCATTER_EXCHANGE_H_
#define CKPTD_SERVER_COLLECTIVE_SCATTER_EXCHANGE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/plan/whole_tensors.h"
#include "server/collective/replica_tree.h"
#include "server/comm/group_comm.h"
#include "server/memory/transit.h"
#include "server/protocol/domain.h"
#include "server/protocol/scatter_call.h"
#include "server/protocol/timing.h"
#include "server/transfer/slab_spans.h"
#include "server/transfer/step_user.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Used for one load. One thread calls Run. If this rank reads, the transfer's threads fill steps
// meanwhile.
class ScatterExchange final : public StepUser {
 public:
  // How many of a reader's steps may be in memory: one is filled while another is sent.
  static constexpr size_t kViews = 2;
  // The limit for an exchange in which `ranks` ranks may connect.
  static std::chrono::nanoseconds PatienceWith(size_t ranks) {
    return timing::kScatterStep + timing::kScatterConnect * ranks;
  }

  // What this rank receives. Null plan: nothing, because it already has its shard.
  struct Own {
    const RankPlan* plan = nullptr;
    std::shared_ptr<StagedMemory> slab;
  };
  // Memory that a reader fills for other ranks.
  struct OutBuffer {
    std::vector<uint32_t> replicas;  // ranks of the communicator
    size_t target = 0;               // index of the transfer's target
    uint64_t slab_bytes = 0;
    bool own = false;    // this is the reader's own slab, which keeps the bytes
    bool whole = false;  // only the tensors that all ranks hold, which are broadcast
  };
  // `call`, `order` and `whole` must outlive it. `whole` belongs to the call.
  ScatterExchange(const ScatterCall& call, const ScatterOrder& order, const WholeTensors& whole,
                  Deadline deadline, std::function<absl::Status()> interrupted);

  // Counts finished exchanges in `progress`, which must outlive this. Call it before Run.
  void CountIn(TransferProgress& progress) {
    progress_ = &progress;
    SetBusy(true);  // until all have joined
  }
  // Says that the ranks wait for each other to join. If the leader knows who reads, this rank
  // then does not count as busy.
  void SetJoining(bool joining);
  // Sets what this rank receives, and from where it broadcasts. Call it before Run. Errors:
  // SlabSpans::Make's.
  absl::Status SetOwn(Own own);
  // Makes room for `bytes` that the backend refused. Returns an error if that is not possible.
  using MakeRoom = std::function<absl::Status(uint64_t bytes, const absl::Status& refused)>;
  // Sets where this rank sends what it reads. Call it before the transfer. `transit` has one
  // memory per view, for buffers that are not the own slab. If it gets no memory, `make_room` is
  // called.
  void SetOutBuffers(std::vector<OutBuffer> buffers,
                     std::vector<std::unique_ptr<TransitMemory>> transit, MakeRoom make_room);
  // The slabs of a buffer that the transfer fills, by view.
  std::vector<SlabView> ViewsOf(size_t buffer) const { return out_buffers_[buffer].views; }
  // The steps that this rank reads.
  std::vector<size_t> OwnSteps() const;

  // Makes all exchanges, in order. An error here or from Stop also ends the waits of the
  // transfer's threads. Errors: those of `comm`.
  absl::Status Run(GroupComm& comm);
  // For GroupComm's waits: the error of Stop, or of `interrupted`.
  absl::Status Interrupted() const;
  // Bytes of tensors that were received. Thread-safe.
  uint64_t received_bytes() const { return received_.load(std::memory_order_relaxed); }

  absl::Status Plan(size_t step, std::span<const RankPlan* const> plans) override;
  absl::Status Enter(size_t step) override;
  void Filled(size_t step) override;
  // Makes Run end with `status`, too.
  void Stop(const absl::Status& status) override;

 private:
  struct Stream {
    OutBuffer buffer;
    std::vector<uint32_t> peers;
    std::vector<SlabView> views;
    // Pipeline steps from the sending of a step to its arrival at the last replica.
    uint32_t depth = 0;
    bool begun = false;
  };
  // A step that this rank reads.
  struct ReadStep {
    std::vector<StepShare> shares;  // per buffer
    bool shown = false;
    bool filled = false;
  };
  // Memory to send or receive in one exchange.
  struct P2POp {
    std::shared_ptr<StagedMemory> memory;
    std::vector<SlabSpan> spans;
    std::vector<uint32_t> to;
    std::optional<uint32_t> from;
    std::optional<uint32_t> root;  // set for a broadcast, instead of `to` and `from`
  };

  // Reserves memory for windows. Makes room as long as that is possible.
  absl::Status Reserve(TransitMemory& transit, uint64_t room) const;
  absl::Status MapWindow(size_t step, const ReadStep& reading)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ReadStep> AwaitFilled(size_t step);
  // Makes one exchange: one step of each reader.
  absl::Status Exchange(GroupComm& comm, size_t pipeline_step);
  absl::Status AddOwnStep(size_t step, std::vector<P2POp>& ops);
  // Adds the operations for that reader's steps: whole tensors, this rank's own bytes, and those
  // to pass on from the pipeline step before. Returns the bytes of tensors that this rank
  // receives.
  uint64_t AddOthersStep(size_t reader, size_t pipeline_step, std::vector<P2POp>& ops);
  uint64_t AddWhole(size_t reader, size_t pipeline_step, std::vector<P2POp>& ops);
  // Notes that the buffer is used in this pipeline step. Its first use makes ranks connect.
  void NoteSent(Stream& stream, size_t pipeline_step);
  // The step of that reader which arrives here in a pipeline step, if it takes `delay` pipeline
  // steps. None: there is none.
  std::optional<size_t> ArrivingStep(size_t reader, size_t pipeline_step, uint32_t delay) const;
  absl::Status Issue(GroupComm& comm, const std::vector<P2POp>& ops, size_t pipeline_step);
  void SetBusy(bool busy) {
    if (progress_ != nullptr) progress_->busy.store(busy, std::memory_order_relaxed);
  }
  bool Broadcasts() const { return call_.replicas.size() == call_.ranks.size(); }
  Deadline StepDeadline(size_t pipeline_step) const;

  const ScatterCall& call_;
  const ScatterOrder& order_;
  const WholeTensors& whole_;
  const Deadline deadline_;
  const std::function<absl::Status()> interrupted_;
  const std::optional<size_t> reader_index_;  // this rank's index among the readers
  Own own_;
  std::optional<SlabSpans> own_spans_;    // without whole tensors
  std::optional<SlabSpans> whole_spans_;  // none: there are no whole tensors
  std::vector<Stream> out_buffers_;
  // From this pipeline step on no rank has to connect, as far as is known.
  size_t connected_from_ = 0;
  std::vector<std::unique_ptr<TransitMemory>> transit_;
  MakeRoom make_room_;
  // Per reader, how many pipeline steps later its steps arrive here.
  std::vector<uint32_t> delays_;
  std::map<size_t, P2POp> pass_on_;  // by reader: what arrived in the last exchange
  std::atomic<uint64_t> received_ = 0;
  TransferProgress* progress_ = nullptr;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, ReadStep> read_steps_ ABSL_GUARDED_BY(mutex_);  // planned, and not yet sent
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;                        // number of this reader's steps
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_SCATTER_EXCHANGE_H_

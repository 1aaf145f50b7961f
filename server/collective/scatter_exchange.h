// One rank's part in a scatter: sends the steps that it reads, receives the others straight
// into its slab, and passes on what its replicas need.
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
#include "server/transfer/slab_spans.h"
#include "server/transfer/step_user.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Run is one thread's; a transfer's threads fill steps meanwhile, where this rank reads.
class ScatterExchange final : public StepUser {
 public:
  // Steps of a reader that are filled while others are sent.
  static constexpr size_t kViews = 2;
  // How long the others may take for one exchange. Ranks that have not exchanged anything with
  // each other before connect in it: so much more for each rank.
  static constexpr std::chrono::seconds kStepPatience{8};
  static constexpr std::chrono::milliseconds kConnectPatience{10};
  // For an exchange in which ranks of a communicator of so many may connect.
  static std::chrono::nanoseconds PatienceWith(size_t ranks) {
    return kStepPatience + kConnectPatience * ranks;
  }

  // What this rank receives. Null plan: nothing, it has its shard.
  struct Own {
    const RankPlan* plan = nullptr;
    std::shared_ptr<StagedMemory> slab;
  };
  // Slabs that a reader fills for others.
  struct OutBuffer {
    std::vector<uint32_t> replicas;  // ranks of the communicator
    size_t target = 0;               // of the transfer
    uint64_t slab_bytes = 0;
    bool own = false;                // the reader's own slab, which stays
    bool whole = false;              // of that, the tensors that all hold: broadcast
  };
  // `call`, `order` and `whole`, which is that of the call, outlive it.
  ScatterExchange(const ScatterCall& call, const ScatterOrder& order, const WholeTensors& whole,
                  Deadline deadline, std::function<absl::Status()> interrupted);

  // Before Run, if somebody asks how far it is: counts exchanges in `progress`, which outlives it.
  void CountIn(TransferProgress& progress) {
    progress_ = &progress;
    SetBusy(true);  // until all have joined
  }
  // While all wait for each other to join: where the leader knows who reads, nobody is busy then.
  void SetJoining(bool joining);
  // Before Run: what it receives, and from where it broadcasts. Errors: SlabSpans::Make's.
  absl::Status SetOwn(Own own);
  // Makes room for so many bytes that were refused, or gives the error to tell.
  using MakeRoom = std::function<absl::Status(uint64_t bytes, const absl::Status& refused)>;
  // Before the transfer: where it sends what it reads. `transit`: one for each view, for
  // outlets that are not the own slab; it asks `make_room` for what that does not get.
  void SetOutBuffers(std::vector<OutBuffer> outlets,
                  std::vector<std::unique_ptr<TransitMemory>> transit, MakeRoom make_room);
  // Of an outlet, for the transfer to fill: its slabs, by view.
  std::vector<SlabView> ViewsOf(size_t outlet) const { return out_buffers_[outlet].views; }
  // The steps that this rank reads.
  std::vector<size_t> OwnSteps() const;

  // All exchanges, in order. On an error, here or from Stop, the transfer's threads are let
  // go with it. Errors: those of `comm`.
  absl::Status Run(GroupComm& comm);
  // For GroupComm's waits: `interrupted`, and what Stop was told.
  absl::Status Interrupted() const;
  // Bytes of tensors that came. Thread-safe.
  uint64_t received_bytes() const { return received_.load(std::memory_order_relaxed); }

  absl::Status Plan(size_t step, std::span<const RankPlan* const> plans) override;
  absl::Status Enter(size_t step) override;
  void Filled(size_t step) override;
  // Ends Run with `status`, too.
  void Stop(const absl::Status& status) override;

 private:
  struct Stream {
    OutBuffer outlet;
    std::vector<uint32_t> peers;
    std::vector<SlabView> views;
    uint32_t depth = 0;  // how many turns later the last of its replicas has what was sent
    bool begun = false;
  };
  // A step that this rank reads.
  struct Reading {
    std::vector<StepShare> shares;  // per outlet
    bool shown = false;
    bool filled = false;
  };
  // Something to send or receive in one exchange.
  struct P2POp {
    std::shared_ptr<StagedMemory> memory;
    std::vector<SlabSpan> spans;
    std::vector<uint32_t> to;
    std::optional<uint32_t> from;
    std::optional<uint32_t> root;  // of a broadcast, instead of both
  };

  // Takes room for what passes through the memory of a view, until that fails for good.
  absl::Status Reserve(TransitMemory& transit, uint64_t room) const;
  absl::Status MapWindow(size_t step, const Reading& reading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Reading> AwaitFilled(size_t step);
  // The exchange of one step per reader.
  absl::Status Exchange(GroupComm& comm, size_t turn);
  absl::Status AddOwnStep(size_t step, std::vector<P2POp>& passings);
  // What comes of that reader's steps, which returns the bytes of tensors in it: whole tensors,
  // what is this rank's alone, and what is passed on of the step before.
  uint64_t AddOthersStep(size_t reader, size_t turn, std::vector<P2POp>& passings);
  uint64_t AddWhole(size_t reader, size_t turn, std::vector<P2POp>& passings);
  // Something of that outlet is sent in this turn: the first that is connects those it goes to.
  void NoteSent(Stream& stream, size_t turn);
  // The step of that reader which reaches this rank, so many turns late, in a turn, if any.
  std::optional<size_t> ArrivingStep(size_t reader, size_t turn, uint32_t delay) const;
  absl::Status Issue(GroupComm& comm, const std::vector<P2POp>& passings, size_t turn);
  void SetBusy(bool busy) {
    if (progress_ != nullptr) progress_->busy.store(busy, std::memory_order_relaxed);
  }
  bool Broadcasts() const { return call_.replicas.size() == call_.ranks.size(); }
  Deadline Patience(size_t turn) const;

  const ScatterCall& call_;
  const ScatterOrder& order_;
  const WholeTensors& whole_;
  const Deadline deadline_;
  const std::function<absl::Status()> interrupted_;
  const std::optional<size_t> turn_of_;  // this rank's place among the readers
  Own own_;
  std::optional<SlabSpans> own_spans_;    // but for whole tensors
  std::optional<SlabSpans> whole_spans_;  // none: there are no such tensors
  std::vector<Stream> out_buffers_;
  size_t connected_from_ = 0;  // the turn from which on nobody has to connect, as far as is known
  std::vector<std::unique_ptr<TransitMemory>> transit_;
  MakeRoom make_room_;
  std::vector<uint32_t> delays_;       // per reader, how many turns later its steps come here
  std::map<size_t, P2POp> pass_on_;  // by reader, what came in the last exchange
  std::atomic<uint64_t> received_ = 0;
  TransferProgress* progress_ = nullptr;

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, Reading> readings_ ABSL_GUARDED_BY(mutex_);  // planned, and not yet sent
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;  // steps of this reader
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_SCATTER_EXCHANGE_H_

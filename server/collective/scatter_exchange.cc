#include "server/collective/scatter_exchange.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// How often a thread that waits for a step checks for interruption.
constexpr std::chrono::milliseconds kTick{50};
// Windows of different slabs start at multiples of this in transit memory.
constexpr uint64_t kWindowAlignment = kSlabAlignment;

uint64_t AlignUp(uint64_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

std::optional<size_t> PlaceIn(const std::vector<uint32_t>& readers, uint32_t rank) {
  const auto at = std::find(readers.begin(), readers.end(), rank);
  if (at == readers.end()) return std::nullopt;
  return static_cast<size_t>(at - readers.begin());
}

}  // namespace

ScatterExchange::ScatterExchange(const ScatterCall& call, const ScatterOrder& order,
                                 const WholeTensors& whole, Deadline deadline,
                                 std::function<absl::Status()> interrupted)
    : call_(call),
      order_(order),
      whole_(whole),
      deadline_(deadline),
      interrupted_(std::move(interrupted)),
      reader_index_(PlaceIn(call.readers, call.rank)) {
  for (const uint32_t reader : call.readers) {
    const ReplicaTree tree(call.replicas, reader, call.fanout);
    delays_.push_back(Broadcasts() ? 0 : tree.DepthOf(call.rank));
  }
}

void ScatterExchange::SetJoining(bool joining) {
  if (progress_ == nullptr) return;
  if (LeaderKnowsReaders(call_)) SetBusy(!joining);
  progress_->joining.store(joining, std::memory_order_relaxed);
}

absl::Status ScatterExchange::SetOwn(Own own) {
  own_ = std::move(own);
  if (own_.plan == nullptr) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(own_spans_, SlabSpans::Make(*own_.plan, [this](const CopyOp& op) {
                           return !whole_.Has(op);
                         }));
  if (whole_.empty()) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(whole_spans_, SlabSpans::Make(*own_.plan, [this](const CopyOp& op) {
                           return whole_.Has(op);
                         }));
  return absl::OkStatus();
}

void ScatterExchange::SetOutBuffers(std::vector<OutBuffer> buffers,
                                    std::vector<std::unique_ptr<TransitMemory>> transit,
                                    MakeRoom make_room) {
  transit_ = std::move(transit);
  make_room_ = std::move(make_room);
  for (OutBuffer& buffer : buffers) {
    Stream stream;
    if (!buffer.whole) {
      const ReplicaTree tree(buffer.replicas, call_.rank, call_.fanout);
      stream.peers = tree.FromReader();
      for (const uint32_t replica : buffer.replicas) {
        stream.depth = std::max(stream.depth, tree.DepthOf(replica));
      }
    }
    for (size_t view = 0; view < (buffer.own ? 1 : kViews); ++view) {
      stream.views.push_back(
          {{}, buffer.own ? own_.slab : transit_[view]->NewView(buffer.slab_bytes)});
    }
    stream.buffer = std::move(buffer);
    out_buffers_.push_back(std::move(stream));
  }
}

std::vector<size_t> ScatterExchange::OwnSteps() const {
  std::vector<size_t> steps;
  if (!reader_index_.has_value()) return steps;
  for (size_t step = *reader_index_; step < order_.steps.size(); step += call_.readers.size()) {
    steps.push_back(step);
  }
  return steps;
}

absl::Status ScatterExchange::Plan(size_t step, std::span<const RankPlan* const> plans) {
  ReadStep reading;
  for (const Stream& stream : out_buffers_) {
    CKPTD_ASSIGN_OR_RETURN(const SlabSpans spans, SlabSpans::Make(*plans[stream.buffer.target]));
    const size_t number = step * call_.readers.size() + *reader_index_;
    const ScatterStep& bounds = order_.steps[number];
    reading.shares.push_back(stream.buffer.whole ? spans.ReceivedPerCopy(bounds)
                                                 : spans.Received(bounds));
  }
  MutexLock lock(mutex_);
  CKPTD_RETURN_IF_ERROR(error_);
  read_steps_[step] = std::move(reading);
  return absl::OkStatus();
}

absl::Status ScatterExchange::Reserve(TransitMemory& transit, uint64_t room) const {
  for (;;) {
    const absl::Status refused = transit.Reserve(room);
    if (refused.ok()) return refused;
    CKPTD_RETURN_IF_ERROR(WithContext(make_room_(room, refused),
                                      "allocating memory to send from (--comm host needs none)"));
  }
}

// Places the windows of this step one after the other in the transit memory of its view.
absl::Status ScatterExchange::MapWindow(size_t step, const ReadStep& reading) {
  struct Place {
    StagedMemory* view;
    uint64_t begin;
    uint64_t at;
  };
  std::vector<Place> places;
  uint64_t room = 0;
  for (size_t i = 0; i < out_buffers_.size(); ++i) {
    const std::vector<SlabSpan>& spans = reading.shares[i].spans;
    if (out_buffers_[i].buffer.own || spans.empty()) continue;
    const uint64_t begin = spans.front().offset;
    // A window is aligned as in its slab, because copies are faster then.
    room = AlignUp(room) + begin % kWindowAlignment;
    places.push_back({out_buffers_[i].views[step % kViews].staged.get(), begin, room});
    room += spans.back().offset + spans.back().bytes - begin;
  }
  if (places.empty()) return absl::OkStatus();
  TransitMemory& transit = *transit_[step % kViews];
  CKPTD_RETURN_IF_ERROR(Reserve(transit, room));
  for (const Place& place : places) transit.MapWindow(*place.view, place.begin, place.at);
  return absl::OkStatus();
}

absl::Status ScatterExchange::Enter(size_t step) {
  MutexLock lock(mutex_);
  // No deadline here: the sending thread has one, and calls Stop when it gives up.
  changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return step < sent_ + kViews || !error_.ok();
  });
  CKPTD_RETURN_IF_ERROR(error_);
  ReadStep& reading = read_steps_[step];
  if (!std::exchange(reading.shown, true)) CKPTD_RETURN_IF_ERROR(MapWindow(step, reading));
  return absl::OkStatus();
}

void ScatterExchange::Filled(size_t step) {
  MutexLock lock(mutex_);
  read_steps_[step].filled = true;
  changed_.NotifyAll();
}

void ScatterExchange::Stop(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (error_.ok()) error_ = status;
  changed_.NotifyAll();
}

absl::Status ScatterExchange::Interrupted() const {
  {
    MutexLock lock(mutex_);
    CKPTD_RETURN_IF_ERROR(error_);
  }
  return interrupted_();
}

absl::StatusOr<ScatterExchange::ReadStep> ScatterExchange::AwaitFilled(size_t step) {
  SetBusy(true);
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.WaitUntil(mutex_, Clock::now() + kTick,
                         [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                           return read_steps_[step].filled || !error_.ok();
                         });
      CKPTD_RETURN_IF_ERROR(error_);
      if (read_steps_[step].filled) return read_steps_[step];
    }
    CKPTD_RETURN_IF_ERROR(interrupted_());
  }
}

Deadline ScatterExchange::StepDeadline(size_t pipeline_step) const {
  // A single reader knows that its bytes are there and that all others wait for them, so it
  // counts seconds. A receiver cannot tell slow storage from a dead link. The readers can, and
  // heartbeats.
  if (!reader_index_.has_value() || call_.readers.size() > 1) return deadline_;
  const bool connects = pipeline_step < connected_from_;
  return std::min<Deadline>(deadline_, Clock::now() + PatienceWith(connects ? call_.ranks.size() : 0));
}

void ScatterExchange::NoteSent(Stream& stream, size_t pipeline_step) {
  if (std::exchange(stream.begun, true)) return;
  connected_from_ = std::max(connected_from_, pipeline_step + stream.depth + 1);
}

// Adds the sends of a step that this rank has read: from its own slab to replicas, or from
// transit memory.
absl::Status ScatterExchange::AddOwnStep(size_t step, std::vector<P2POp>& ops) {
  CKPTD_ASSIGN_OR_RETURN(ReadStep reading, AwaitFilled(step));
  for (size_t i = 0; i < out_buffers_.size(); ++i) {
    Stream& stream = out_buffers_[i];
    P2POp op;
    op.memory = stream.views[step % stream.views.size()].staged;
    op.spans = std::move(reading.shares[i].spans);
    const bool broadcast = stream.buffer.whole || (stream.buffer.own && Broadcasts());
    if (broadcast) {
      op.root = call_.rank;
    } else {
      op.to = stream.peers;
    }
    if (!broadcast && op.to.empty()) continue;
    if (!op.spans.empty()) NoteSent(stream, step);
    ops.push_back(std::move(op));
  }
  return absl::OkStatus();
}

std::optional<size_t> ScatterExchange::ArrivingStep(size_t reader, size_t pipeline_step,
                                                    uint32_t delay) const {
  if (pipeline_step < delay) return std::nullopt;
  const size_t step = (pipeline_step - delay) * call_.readers.size() + reader;
  if (step >= order_.steps.size()) return std::nullopt;
  return step;
}

uint64_t ScatterExchange::AddWhole(size_t reader, size_t pipeline_step, std::vector<P2POp>& ops) {
  const std::optional<size_t> step = ArrivingStep(reader, pipeline_step, 0);
  if (!whole_spans_.has_value() || !step.has_value()) return 0;
  StepShare share = whole_spans_->ReceivedPerCopy(order_.steps[*step]);
  P2POp op;
  op.memory = own_.slab;
  op.spans = std::move(share.spans);
  op.root = call_.readers[reader];
  ops.push_back(std::move(op));
  return share.tensor_bytes;
}

// A replica sends a step on in the pipeline step after the one that received it, and the next
// replica receives it then. So in each pipeline step, ranks depend only on what is sent in it.
uint64_t ScatterExchange::AddOthersStep(size_t reader, size_t pipeline_step,
                                        std::vector<P2POp>& ops) {
  const uint64_t whole_bytes = AddWhole(reader, pipeline_step, ops);
  if (auto before = pass_on_.extract(reader); !before.empty()) {
    ops.push_back(std::move(before.mapped()));
  }
  const std::optional<size_t> step = ArrivingStep(reader, pipeline_step, delays_[reader]);
  if (!own_spans_.has_value() || !step.has_value()) return whole_bytes;
  StepShare share = own_spans_->Received(order_.steps[*step]);
  P2POp op;
  op.memory = own_.slab;
  op.spans = std::move(share.spans);
  if (Broadcasts()) {
    op.root = call_.readers[reader];
  } else {
    const ReplicaTree tree(call_.replicas, call_.readers[reader], call_.fanout);
    op.to = tree.ChildrenOf(call_.rank);
    if (!op.to.empty()) pass_on_[reader] = op;
    op.to.clear();
    op.from = tree.ParentOf(call_.rank);
  }
  ops.push_back(std::move(op));
  return whole_bytes + share.tensor_bytes;
}

absl::Status ScatterExchange::Issue(GroupComm& comm, const std::vector<P2POp>& ops,
                                    size_t pipeline_step) {
  bool begun = false;
  for (const P2POp& op : ops) {
    for (const SlabSpan& span : op.spans) {
      if (!std::exchange(begun, true)) CKPTD_RETURN_IF_ERROR(comm.Begin());
      if (op.root.has_value()) {
        CKPTD_RETURN_IF_ERROR(
            comm.Broadcast(*op.memory, span.offset, span.bytes, *op.root));
      }
      for (const uint32_t peer : op.to) {
        CKPTD_RETURN_IF_ERROR(comm.Send(*op.memory, span.offset, span.bytes, peer));
      }
      if (op.from.has_value()) {
        CKPTD_RETURN_IF_ERROR(
            comm.Receive(*op.memory, span.offset, span.bytes, *op.from));
      }
    }
  }
  if (!begun) return absl::OkStatus();
  SetBusy(false);
  const Deadline deadline = StepDeadline(pipeline_step);
  CKPTD_RETURN_IF_ERROR(comm.End(deadline));
  return comm.Wait(deadline);
}

absl::Status ScatterExchange::Exchange(GroupComm& comm, size_t pipeline_step) {
  // In the order of the readers, so that two ranks have their common operations in the same
  // order.
  std::vector<P2POp> ops;
  uint64_t incoming = 0;
  bool read = false;
  for (size_t reader = 0; reader < call_.readers.size(); ++reader) {
    if (reader != reader_index_) {
      incoming += AddOthersStep(reader, pipeline_step, ops);
    } else if (pipeline_step * call_.readers.size() + reader < order_.steps.size()) {
      read = true;
      CKPTD_RETURN_IF_ERROR(AddOwnStep(pipeline_step, ops));
    }
  }
  CKPTD_RETURN_IF_ERROR(Issue(comm, ops, pipeline_step));
  received_.fetch_add(incoming, std::memory_order_relaxed);
  if (progress_ != nullptr) progress_->exchanges.fetch_add(1, std::memory_order_relaxed);
  if (!read) return absl::OkStatus();
  MutexLock lock(mutex_);
  read_steps_.erase(pipeline_step);
  sent_ = pipeline_step + 1;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status ScatterExchange::Run(GroupComm& comm) {
  const size_t readers = call_.readers.size();
  // One more pipeline step than the last step needs to come here, in order to pass it on.
  const uint32_t latest = delays_.empty() ? 0 : *std::max_element(delays_.begin(), delays_.end());
  const size_t pipeline_steps = (order_.steps.size() + readers - 1) / readers + latest + 1;
  absl::Status status;
  for (size_t i = 0; i < pipeline_steps && status.ok(); ++i) status = Exchange(comm, i);
  SetBusy(false);
  if (status.ok()) return status;
  Stop(status);
  // The communicator may only report that it was dropped; `error_` is the cause.
  MutexLock lock(mutex_);
  return error_;
}

}  // namespace ckptd

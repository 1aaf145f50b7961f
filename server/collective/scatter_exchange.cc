#include "server/collective/scatter_exchange.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// How often who waits for a step asks whether it still makes sense.
constexpr std::chrono::milliseconds kTick{50};
// Of where slabs of different ranks lie beside each other.
constexpr uint64_t kApart = kSlabAlignment;

uint64_t AlignUp(uint64_t bytes) { return (bytes + kApart - 1) / kApart * kApart; }

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
      turn_of_(PlaceIn(call.readers, call.rank)) {
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

void ScatterExchange::SetOutBuffers(std::vector<OutBuffer> outlets,
                                 std::vector<std::unique_ptr<TransitMemory>> transit,
                                 MakeRoom make_room) {
  transit_ = std::move(transit);
  make_room_ = std::move(make_room);
  for (OutBuffer& outlet : outlets) {
    Stream stream;
    if (!outlet.whole) {
      const ReplicaTree tree(outlet.replicas, call_.rank, call_.fanout);
      stream.peers = tree.FromReader();
      for (const uint32_t replica : outlet.replicas) {
        stream.depth = std::max(stream.depth, tree.DepthOf(replica));
      }
    }
    for (size_t view = 0; view < (outlet.own ? 1 : kViews); ++view) {
      stream.views.push_back(
          {{}, outlet.own ? own_.slab : transit_[view]->NewView(outlet.slab_bytes)});
    }
    stream.outlet = std::move(outlet);
    out_buffers_.push_back(std::move(stream));
  }
}

std::vector<size_t> ScatterExchange::OwnSteps() const {
  std::vector<size_t> steps;
  if (!turn_of_.has_value()) return steps;
  for (size_t step = *turn_of_; step < order_.steps.size(); step += call_.readers.size()) {
    steps.push_back(step);
  }
  return steps;
}

absl::Status ScatterExchange::Plan(size_t step, std::span<const RankPlan* const> plans) {
  Reading reading;
  for (const Stream& stream : out_buffers_) {
    CKPTD_ASSIGN_OR_RETURN(const SlabSpans spans, SlabSpans::Make(*plans[stream.outlet.target]));
    const size_t number = step * call_.readers.size() + *turn_of_;
    const ScatterStep& bounds = order_.steps[number];
    reading.shares.push_back(stream.outlet.whole ? spans.ReceivedPerCopy(bounds)
                                                 : spans.Received(bounds));
  }
  MutexLock lock(mutex_);
  CKPTD_RETURN_IF_ERROR(error_);
  readings_[step] = std::move(reading);
  return absl::OkStatus();
}

absl::Status ScatterExchange::Reserve(TransitMemory& transit, uint64_t room) const {
  for (;;) {
    const absl::Status refused = transit.Reserve(room);
    if (refused.ok()) return refused;
    CKPTD_RETURN_IF_ERROR(WithContext(make_room_(room, refused),
                                      "taking memory to send from (--comm host needs none)"));
  }
}

// The slabs' parts of this step, one behind the other in the memory of its view.
absl::Status ScatterExchange::MapWindow(size_t step, const Reading& reading) {
  struct Place {
    StagedMemory* view;
    uint64_t begin;
    uint64_t at;
  };
  std::vector<Place> places;
  uint64_t room = 0;
  for (size_t i = 0; i < out_buffers_.size(); ++i) {
    const std::vector<SlabSpan>& spans = reading.shares[i].spans;
    if (out_buffers_[i].outlet.own || spans.empty()) continue;
    const uint64_t begin = spans.front().offset;
    // As aligned as in the slab itself: copies are faster so.
    room = AlignUp(room) + begin % kApart;
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
  // Whoever sends has a deadline, and lets go of us when it gives up.
  changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return step < sent_ + kViews || !error_.ok();
  });
  CKPTD_RETURN_IF_ERROR(error_);
  Reading& reading = readings_[step];
  if (!std::exchange(reading.shown, true)) CKPTD_RETURN_IF_ERROR(MapWindow(step, reading));
  return absl::OkStatus();
}

void ScatterExchange::Filled(size_t step) {
  MutexLock lock(mutex_);
  readings_[step].filled = true;
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

absl::StatusOr<ScatterExchange::Reading> ScatterExchange::AwaitFilled(size_t step) {
  SetBusy(true);
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.WaitUntil(mutex_, Clock::now() + kTick,
                         [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                           return readings_[step].filled || !error_.ok();
                         });
      CKPTD_RETURN_IF_ERROR(error_);
      if (readings_[step].filled) return readings_[step];
    }
    CKPTD_RETURN_IF_ERROR(interrupted_());
  }
}

Deadline ScatterExchange::Patience(size_t turn) const {
  // Who reads knows that its bytes are there, and that all others wait for them. Who does not
  // cannot tell slow storage from a dead link: the readers can, and heartbeats.
  if (!turn_of_.has_value() || call_.readers.size() > 1) return deadline_;
  const bool connects = turn < connected_from_;
  return std::min<Deadline>(deadline_, Clock::now() + PatienceWith(connects ? call_.ranks.size() : 0));
}

void ScatterExchange::NoteSent(Stream& stream, size_t turn) {
  if (std::exchange(stream.begun, true)) return;
  connected_from_ = std::max(connected_from_, turn + stream.depth + 1);
}

// What this rank has read: out of its own slab to replicas, or out of transit memory.
absl::Status ScatterExchange::AddOwnStep(size_t step, std::vector<P2POp>& passings) {
  CKPTD_ASSIGN_OR_RETURN(Reading reading, AwaitFilled(step));
  for (size_t i = 0; i < out_buffers_.size(); ++i) {
    Stream& stream = out_buffers_[i];
    P2POp passing;
    passing.memory = stream.views[step % stream.views.size()].staged;
    passing.spans = std::move(reading.shares[i].spans);
    const bool broadcast = stream.outlet.whole || (stream.outlet.own && Broadcasts());
    if (broadcast) {
      passing.root = call_.rank;
    } else {
      passing.to = stream.peers;
    }
    if (!broadcast && passing.to.empty()) continue;
    if (!passing.spans.empty()) NoteSent(stream, step);
    passings.push_back(std::move(passing));
  }
  return absl::OkStatus();
}

std::optional<size_t> ScatterExchange::ArrivingStep(size_t reader, size_t turn,
                                                    uint32_t delay) const {
  if (turn < delay) return std::nullopt;
  const size_t step = (turn - delay) * call_.readers.size() + reader;
  if (step >= order_.steps.size()) return std::nullopt;
  return step;
}

uint64_t ScatterExchange::AddWhole(size_t reader, size_t turn, std::vector<P2POp>& passings) {
  const std::optional<size_t> step = ArrivingStep(reader, turn, 0);
  if (!whole_spans_.has_value() || !step.has_value()) return 0;
  StepShare share = whole_spans_->ReceivedPerCopy(order_.steps[*step]);
  P2POp passing;
  passing.memory = own_.slab;
  passing.spans = std::move(share.spans);
  passing.root = call_.readers[reader];
  passings.push_back(std::move(passing));
  return share.tensor_bytes;
}

// A replica sends on in the turn after it has received, and the next one receives in that turn:
// in each turn the ranks need nothing of each other but what is sent in it.
uint64_t ScatterExchange::AddOthersStep(size_t reader, size_t turn,
                                        std::vector<P2POp>& passings) {
  const uint64_t whole_bytes = AddWhole(reader, turn, passings);
  if (auto before = pass_on_.extract(reader); !before.empty()) {
    passings.push_back(std::move(before.mapped()));
  }
  const std::optional<size_t> step = ArrivingStep(reader, turn, delays_[reader]);
  if (!own_spans_.has_value() || !step.has_value()) return whole_bytes;
  StepShare share = own_spans_->Received(order_.steps[*step]);
  P2POp passing;
  passing.memory = own_.slab;
  passing.spans = std::move(share.spans);
  if (Broadcasts()) {
    passing.root = call_.readers[reader];
  } else {
    const ReplicaTree tree(call_.replicas, call_.readers[reader], call_.fanout);
    passing.to = tree.ChildrenOf(call_.rank);
    if (!passing.to.empty()) pass_on_[reader] = passing;
    passing.to.clear();
    passing.from = tree.ParentOf(call_.rank);
  }
  passings.push_back(std::move(passing));
  return whole_bytes + share.tensor_bytes;
}

absl::Status ScatterExchange::Issue(GroupComm& comm, const std::vector<P2POp>& passings,
                                    size_t turn) {
  bool begun = false;
  for (const P2POp& passing : passings) {
    for (const SlabSpan& span : passing.spans) {
      if (!std::exchange(begun, true)) CKPTD_RETURN_IF_ERROR(comm.Begin());
      if (passing.root.has_value()) {
        CKPTD_RETURN_IF_ERROR(
            comm.Broadcast(*passing.memory, span.offset, span.bytes, *passing.root));
      }
      for (const uint32_t peer : passing.to) {
        CKPTD_RETURN_IF_ERROR(comm.Send(*passing.memory, span.offset, span.bytes, peer));
      }
      if (passing.from.has_value()) {
        CKPTD_RETURN_IF_ERROR(
            comm.Receive(*passing.memory, span.offset, span.bytes, *passing.from));
      }
    }
  }
  if (!begun) return absl::OkStatus();
  SetBusy(false);
  const Deadline deadline = Patience(turn);
  CKPTD_RETURN_IF_ERROR(comm.End(deadline));
  return comm.Wait(deadline);
}

absl::Status ScatterExchange::Exchange(GroupComm& comm, size_t turn) {
  // Reader by reader, so that two ranks have what they exchange in the same order.
  std::vector<P2POp> passings;
  uint64_t coming = 0;
  bool read = false;
  for (size_t reader = 0; reader < call_.readers.size(); ++reader) {
    if (reader != turn_of_) {
      coming += AddOthersStep(reader, turn, passings);
    } else if (turn * call_.readers.size() + reader < order_.steps.size()) {
      read = true;
      CKPTD_RETURN_IF_ERROR(AddOwnStep(turn, passings));
    }
  }
  CKPTD_RETURN_IF_ERROR(Issue(comm, passings, turn));
  received_.fetch_add(coming, std::memory_order_relaxed);
  if (progress_ != nullptr) progress_->exchanges.fetch_add(1, std::memory_order_relaxed);
  if (!read) return absl::OkStatus();
  MutexLock lock(mutex_);
  readings_.erase(turn);
  sent_ = turn + 1;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status ScatterExchange::Run(GroupComm& comm) {
  const size_t readers = call_.readers.size();
  // One more than it takes until the last step comes here, to pass that on.
  const uint32_t latest = delays_.empty() ? 0 : *std::max_element(delays_.begin(), delays_.end());
  const size_t turns = (order_.steps.size() + readers - 1) / readers + latest + 1;
  absl::Status status;
  for (size_t turn = 0; turn < turns && status.ok(); ++turn) status = Exchange(comm, turn);
  SetBusy(false);
  if (status.ok()) return status;
  Stop(status);
  // The communicator may say only that somebody has let go of it.
  MutexLock lock(mutex_);
  return error_;
}

}  // namespace ckptd

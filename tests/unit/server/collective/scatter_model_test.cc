// Compares the model of a load by NCCL with a simulation: the operations that each rank really
// issues, pipeline step by pipeline step, over links of the same rates.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/load_model.h"
#include "common/layout/rules_parser.h"
#include "server/collective/scatter_exchange.h"
#include "tests/testing/comms_in_process.h"
#include "tests/testing/llama_index.h"
#include "tests/testing/pipeline_simulation.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using Stage = PipelineSimulation::Stage;

// NCCL passes larger messages on in pieces.
constexpr uint64_t kPiece = 1 << 20;

struct Operation {
  enum class Kind : uint8_t { kSend, kReceive, kBroadcast };
  Kind kind;
  uint32_t peer;  // root of a broadcast
  uint64_t bytes;
};
// The operations of one rank, per pipeline step.
using PipelineSteps = std::vector<std::vector<Operation>>;

// Carries nothing, and records the operations.
class RecordingComm final : public GroupComm {
 public:
  RecordingComm(const TransferProgress& progress, PipelineSteps& pipeline_steps)
      : progress_(progress), pipeline_steps_(pipeline_steps) {}

  absl::Status Begin() override {
    pipeline_steps_.resize(progress_.exchanges + 1);
    return absl::OkStatus();
  }
  absl::Status Send(const StagedMemory&, uint64_t, uint64_t bytes, uint32_t peer) override {
    return Add({Operation::Kind::kSend, peer, bytes});
  }
  absl::Status Receive(const StagedMemory&, uint64_t, uint64_t bytes, uint32_t peer) override {
    return Add({Operation::Kind::kReceive, peer, bytes});
  }
  absl::Status Broadcast(const StagedMemory&, uint64_t, uint64_t bytes, uint32_t root) override {
    return Add({Operation::Kind::kBroadcast, root, bytes});
  }
  absl::Status End(Deadline) override { return absl::OkStatus(); }
  absl::Status Wait(Deadline) override { return absl::OkStatus(); }
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  void Interrupt(std::function<absl::Status()>) override {}

 private:
  absl::Status Add(const Operation& operation) {
    pipeline_steps_.back().push_back(operation);
    return absl::OkStatus();
  }

  const TransferProgress& progress_;
  PipelineSteps& pipeline_steps_;
};

// A load, as the daemons would carry it out.
class Load {
 public:
  Load(const CheckpointIndex& index, const std::string& rules, uint32_t ranks, bool all_read)
      : index_(index), order_(OrderScatter(index, {})) {
    const LayoutRules parsed = LayoutRules::Parse(rules).value();
    std::vector<uint32_t> numbers(ranks);
    std::iota(numbers.begin(), numbers.end(), 0u);
    const auto shared = std::make_shared<const CheckpointIndex>(index);
    group_.emplace(GroupPlan::Make(shared, parsed.ForRanks(index, numbers).value(), {}).value());
    std::vector<const PlannedRank*> planned;
    for (const uint32_t rank : numbers) {
      plans_.push_back(PlanRank(index, parsed.ForRank(index, rank).value(), {}).value());
      planned.push_back(group_->Find(rank));
      shape.rank_bytes.push_back(plans_.back().tensor_bytes);
    }
    sets_ = FindReplicas(planned);
    shape.distinct_bytes = group_->DistinctBytes();
    for (const ScatterStep& step : order_.steps) shape.storage_bytes += step.end - step.begin;
    readers = all_read ? ranks : 1;
    for (const uint32_t rank : numbers) Record(rank);
  }

  uint32_t ranks() const { return static_cast<uint32_t>(plans_.size()); }
  size_t step_count() const { return order_.steps.size(); }
  uint64_t BytesOf(size_t step) const { return order_.steps[step].end - order_.steps[step].begin; }

  LoadShape shape;
  uint32_t readers = 1;
  std::vector<PipelineSteps> asked;  // by rank

 private:
  ScatterCall CallOf(uint32_t rank) const {
    ScatterCall call;
    call.rank = rank;
    call.ranks.resize(ranks());
    std::iota(call.ranks.begin(), call.ranks.end(), 0u);
    call.readers.assign(call.ranks.begin(), call.ranks.begin() + readers);
    for (const ReplicaSet& set : sets_) {
      if (std::binary_search(set.ranks.begin(), set.ranks.end(), rank)) call.replicas = set.ranks;
    }
    call.fanout = FanoutFor(sets_.size());
    return call;
  }

  void Record(uint32_t rank) {
    const ScatterCall call = CallOf(rank);
    const WholeTensors none;
    ScatterExchange exchange(call, order_, none, Deadline::max(), absl::OkStatus);
    TransferProgress progress(1);
    exchange.CountIn(progress);
    const auto slab = std::make_shared<BytesInProcess>(plans_[rank].slab_bytes);
    const bool reads = rank < readers;
    EXPECT_OK(exchange.SetOwn({reads && readers == 1 ? nullptr : &plans_[rank], slab}));
    if (reads) Fill(rank, exchange);
    asked.emplace_back();
    RecordingComm comm(progress, asked.back());
    EXPECT_OK(exchange.Run(comm));
    asked.back().resize(progress.exchanges);
  }

  // Marks all that this rank reads as filled.
  void Fill(uint32_t rank, ScatterExchange& exchange) const {
    std::vector<ScatterExchange::OutBuffer> out_buffers;
    std::vector<const RankPlan*> plans;
    for (const ReplicaSet& set : sets_) {
      ScatterExchange::OutBuffer out_buffer;
      out_buffer.replicas = set.ranks;
      out_buffer.target = plans.size();
      out_buffer.slab_bytes = set.plan->slab_bytes;
      out_buffer.own = std::binary_search(set.ranks.begin(), set.ranks.end(), rank);
      out_buffers.push_back(std::move(out_buffer));
      plans.push_back(&plans_[set.ranks.front()]);
    }
    std::vector<std::unique_ptr<TransitMemory>> transit;
    for (size_t view = 0; view < ScatterExchange::kViews; ++view) {
      transit.push_back(std::make_unique<TransitInProcess>());
    }
    exchange.SetOutBuffers(std::move(out_buffers), std::move(transit),
                           [](uint64_t, const absl::Status& refused) { return refused; });
    for (size_t step = 0; step < exchange.OwnSteps().size(); ++step) {
      EXPECT_OK(exchange.Plan(step, plans));
      exchange.Filled(step);
    }
  }

  const CheckpointIndex& index_;
  const ScatterOrder order_;
  std::optional<GroupPlan> group_;
  std::vector<RankPlan> plans_;
  std::vector<ReplicaSet> sets_;
};

// A rank enters a pipeline step when its operations of the previous one are done and its own step
// has been filled. An operation begins when all its ranks have joined it.
class Simulation {
 public:
  Simulation(const Hardware& machine, const Load& load, bool cold) : machine_(machine), load_(load) {
    for (uint32_t rank = 0; rank < load.ranks(); ++rank) {
      if (rank % machine.gpus_per_host == 0) {
        hosts_.push_back({{cold ? machine.storage : 0, 0}, {machine.memory, 0}});
      }
      const double adapter = machine.network / machine.gpus_per_host;
      ranks_.push_back({{machine.link, 0}, {machine.fabric, 0}, {machine.fabric, 0},
                        {adapter, 0}, {adapter, 0}});
    }
    for (uint32_t rank = 0; rank < load.ranks(); ++rank) {
      for (size_t view = 0; view < ScatterExchange::kViews; ++view) FillNext(rank);
      Enter(rank);
    }
  }

  double Run() { return events_.Run(); }
  // Whether all ranks have finished.
  bool Done() const {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& one = ranks_[rank];
      if (one.pipeline_step != load_.asked[rank].size() || one.open > 0) return false;
    }
    return true;
  }

 private:
  struct Host {
    RateServer storage, memory;
  };
  struct Rank {
    RateServer link, fabric_out, fabric_in, out, in;
    size_t pipeline_step = 0;      // the one it is in, or waits to enter
    bool entered = false;
    size_t open = 0;     // operations of that pipeline step that are not done
    size_t filling = 0;  // number of its own step that is filled next
    size_t filled = 0;   // how many of its own steps have been filled
  };
  // The nth operations of one kind between the same ranks belong together.
  struct Meeting {
    size_t there = 0;
    std::vector<uint32_t> ranks;
  };
  using Key = std::tuple<uint32_t, uint32_t, size_t>;  // from, to or kAll, number

  static constexpr uint32_t kAll = UINT32_MAX;

  Host& HostOf(uint32_t rank) { return hosts_[rank / machine_.gpus_per_host]; }
  size_t OwnStep(uint32_t rank, size_t number) const { return number * load_.readers + rank; }
  bool Reads(uint32_t rank, size_t number) const {
    return rank < load_.readers && OwnStep(rank, number) < load_.step_count();
  }

  void FillNext(uint32_t rank) {
    Rank& one = ranks_[rank];
    if (!Reads(rank, one.filling)) return;
    const uint64_t bytes = load_.BytesOf(OwnStep(rank, one.filling++));
    InPieces(bytes, {&HostOf(rank).storage, &HostOf(rank).memory, &one.link}, [this, rank] {
      ++ranks_[rank].filled;
      Enter(rank);
    });
  }

  void Enter(uint32_t rank) {
    Rank& one = ranks_[rank];
    const PipelineSteps& pipeline_steps = load_.asked[rank];
    if (one.entered || one.pipeline_step == pipeline_steps.size()) return;
    if (Reads(rank, one.pipeline_step) && one.filled <= one.pipeline_step) return;
    one.entered = true;
    one.open = pipeline_steps[one.pipeline_step].size() + 1;
    for (const Operation& operation : pipeline_steps[one.pipeline_step]) Join(rank, operation);
    Leave(rank);
  }

  // One operation of this rank is done, or all have been issued.
  void Leave(uint32_t rank) {
    Rank& one = ranks_[rank];
    if (--one.open > 0) return;
    if (Reads(rank, one.pipeline_step)) FillNext(rank);
    ++one.pipeline_step;
    one.entered = false;
    events_.Begin({}, [this, rank] { Enter(rank); });
  }

  void Join(uint32_t rank, const Operation& operation) {
    const bool sends = operation.kind == Operation::Kind::kSend;
    const bool all = operation.kind == Operation::Kind::kBroadcast;
    const uint32_t from = sends ? rank : operation.peer;
    const uint32_t to = all ? kAll : sends ? operation.peer : rank;
    const size_t number = joined_[{rank, from, to}]++;
    Meeting& meeting = meetings_[{from, to, number}];
    meeting.ranks.push_back(rank);
    if (meeting.ranks.size() < (all ? ranks_.size() : 2)) return;
    const std::vector<uint32_t> ranks = std::move(meeting.ranks);
    meetings_.erase({from, to, number});
    InPieces(operation.bytes, all ? Ring(from) : Way(from, to), [this, ranks] {
      for (const uint32_t one : ranks) Leave(one);
    });
  }

  std::vector<RateServer*> Way(uint32_t from, uint32_t to) {
    const bool near = from / machine_.gpus_per_host == to / machine_.gpus_per_host;
    if (near) return {&ranks_[from].fabric_out, &ranks_[to].fabric_in};
    return {&ranks_[from].out, &ranks_[to].in};
  }
  std::vector<RateServer*> Ring(uint32_t root) {
    std::vector<RateServer*> way;
    for (size_t i = 0; i + 1 < ranks_.size(); ++i) {
      const auto from = static_cast<uint32_t>((root + i) % ranks_.size());
      for (RateServer* const server : Way(from, static_cast<uint32_t>((from + 1) % ranks_.size()))) {
        way.push_back(server);
      }
    }
    return way;
  }

  void InPieces(uint64_t bytes, const std::vector<RateServer*>& way, std::function<void()> then) {
    const auto left = std::make_shared<size_t>((bytes + kPiece - 1) / kPiece);
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      std::vector<Stage> stages;
      for (RateServer* const server : way) stages.push_back({server, std::min(kPiece, bytes - at)});
      events_.Begin(std::move(stages), [left, then] {
        if (--*left == 0) then();
      });
    }
  }

  const Hardware& machine_;
  const Load& load_;
  std::deque<Host> hosts_;
  std::deque<Rank> ranks_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, size_t> joined_;  // by rank, from, to
  std::map<Key, Meeting> meetings_;
  PipelineSimulation events_;
};

struct Case {
  std::string rules;
  uint32_t ranks = 8;
  uint32_t gpus = 8;
  bool cold = false;
  bool all_read = false;
};

class ScatterModel : public testing::TestWithParam<Case> {};

TEST_P(ScatterModel, IsWhatTheSimulationOfAllRanksOperationsComesTo) {
  const Case& one = GetParam();
  // A shorter model takes long enough to simulate for thousands of ranks.
  const CheckpointIndex index = LlamaIndex(one.ranks > 1000 ? 12 : 48, 2048);
  const Load load(index, one.rules, one.ranks, one.all_read);
  const Hardware machine = LargeHosts(one.gpus);
  ASSERT_OK_AND_ASSIGN(
      const LoadPrediction prediction,
      PredictLoad(machine, load.shape,
                  one.cold ? ModelSource::kStorage : ModelSource::kPageCache,
                  one.all_read ? ModelReaders::kAll : ModelReaders::kRank0, ModelWay::kNccl));
  Simulation simulation(machine, load, one.cold);
  const double simulated = simulation.Run();
  ASSERT_TRUE(simulation.Done()) << "ranks wait for each other for ever";
  ExpectCloseAbove(simulated, prediction);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ScatterModel,
    testing::Values(Case{"fsdp:8"}, Case{"fsdp:8", 8, 8, true}, Case{"replicate:8"},
                    Case{"hsdp:2x4"}, Case{"fsdp:16", 16}, Case{"fsdp:16", 16, 8, true},
                    Case{"fsdp:64", 64}, Case{"hsdp:2x8", 16}, Case{"hsdp:4x8", 32},
                    Case{"replicate:16", 16}, Case{"fsdp:8", 8, 8, false, true},
                    Case{"fsdp:16", 16, 8, false, true}, Case{"fsdp:16", 16, 8, true, true},
                    Case{"hsdp:2x8", 16, 8, false, true}, Case{"fsdp:64", 64, 8, false, true},
                    Case{"hsdp:8x64", 512}, Case{"fsdp:512", 512}, Case{"fsdp:4096", 4096}));

}  // namespace
}  // namespace ckptd

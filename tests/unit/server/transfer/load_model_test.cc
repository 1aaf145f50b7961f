// The model of a load beside a simulation that carries out the real plan, item by item in
// the order in which readers take them, through queues of the same rates.
#include "common/layout/load_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/layout/rules_parser.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/schedule.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr double kGB = 1e9;

Hardware Machine(uint32_t gpus) {
  Hardware machine;
  machine.name = "a test";
  machine.gpus_per_host = gpus;
  machine.storage = 12 * kGB;
  machine.memory = 80 * kGB;
  machine.link = 55 * kGB;
  machine.links = 240 * kGB;
  machine.fabric = 350 * kGB;
  machine.network = 360 * kGB;
  machine.streams = 5 * kGB;
  machine.fixed_seconds = 0;
  return machine;
}

// As a Llama of `layers`: four square matrices, three long ones, a norm.
CheckpointIndex Llama(uint32_t layers, uint64_t width) {
  CheckpointIndex index;
  index.files.resize(1);
  const auto add = [&index](const std::string& name, const Shape& shape) {
    TensorEntry& tensor = index.tensors.emplace_back();
    tensor.name = name;
    tensor.dtype = Dtype::kBF16;
    tensor.shape = shape;
    Piece& piece = tensor.pieces.emplace_back();
    piece.offset = index.files[0].bytes;
    piece.box = {Shape(shape.size(), 0), shape};
    piece.bytes = 2 * ElementCount(shape);
    index.files[0].bytes += piece.bytes;
  };
  for (uint32_t i = 10; i < 10 + layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    for (const char* const name : {"a_q", "b_k", "c_v", "d_o"}) add(layer + name, {width, width});
    for (const char* const name : {"e_gate", "f_up"}) add(layer + name, {4 * width, width});
    add(layer + "g_down", {width, 4 * width});
    add(layer + "h_norm", {width});
  }
  return index;
}

// Nothing is sent: the schedule wants to know that memory is elsewhere.
class NoSink final : public TransferSink {
 public:
  absl::Status Send(const Frame&) override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
};

// Bytes of one work item: read once, and what each rank gets of them.
struct Item {
  uint64_t read = 0;
  std::vector<uint64_t> to_rank;
};

class Load {
 public:
  Load(const CheckpointIndex& index, const std::string& rules, uint32_t ranks) {
    const LayoutRules parsed = LayoutRules::Parse(rules).value();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      plans_.push_back(PlanRank(index, parsed.ForRank(index, rank).value(), {}).value());
      shape.rank_bytes.push_back(plans_.back().tensor_bytes);
    }
    std::vector<TransferTarget> targets;
    for (const RankPlan& plan : plans_) targets.push_back({&plan, {}, &sink_});
    const Schedule schedule = BuildSchedule(index, targets).value();
    ItemCopies copies(schedule, targets, 0);
    for (const WorkItem& work : schedule.items) {
      EXPECT_OK(copies.Begin(work));
      Item& item = items.emplace_back();
      item.read = copies.needed_bytes();
      item.to_rank.resize(ranks);
      for (const ItemCopies::Active& active : copies.actives()) {
        const uint64_t bytes = LocalBytesBefore(active.geometry, work.end) -
                               LocalBytesBefore(active.geometry, work.begin);
        for (const Destination& to : copies.DestinationsOf(active)) item.to_rank[to.target] += bytes;
      }
      shape.storage_bytes += item.read;
    }
  }

  LoadShape shape;
  std::vector<Item> items;  // in file order

 private:
  NoSink sink_;
  std::vector<RankPlan> plans_;
};

// Serves pieces of work one after the other, as they arrive.
struct Server {
  double rate = 0;  // bytes per second; 0: at once
  double free_at = 0;
};

struct Step {
  Server* server = nullptr;
  uint64_t bytes = 0;
};

// The direct way, read by rank 0's host or by all hosts. Events are taken in the order of
// their times.
class Simulation {
 public:
  Simulation(const Hardware& machine, const Load& load, bool cold, bool all_read, size_t slots)
      : machine_(machine), load_(load), links_(load.shape.rank_bytes.size(), {machine.link, 0}) {
    const size_t hosts = (links_.size() + machine.gpus_per_host - 1) / machine.gpus_per_host;
    const size_t readers = all_read ? hosts : 1;
    for (size_t h = 0; h < hosts; ++h) {
      Host& host = hosts_.emplace_back();
      host.storage.rate = cold ? machine.storage : 0;
      host.memory.rate = machine.memory;
      host.links.rate = machine.links;
      host.out.rate = host.in.rate = machine.streams;
      if (h >= readers) continue;
      host.next = h * load.items.size() / readers;
      host.last = (h + 1) * load.items.size() / readers;
    }
    for (size_t h = 0; h < readers; ++h) {
      for (size_t slot = 0; slot < slots; ++slot) StartNext(h);
    }
  }

  double Run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      Advance(*event.job);
    }
    return now_;
  }

 private:
  struct Host {
    Server storage, memory, links, out, in;
    size_t next = 0;  // items that it reads: from here
    size_t last = 0;
  };
  // A piece on its way; `then` when it is there.
  struct Job {
    std::vector<Step> steps;
    size_t at = 0;
    std::function<void()> then;
  };
  struct Event {
    double at = 0;
    uint64_t number = 0;  // of those at one time, in order
    std::shared_ptr<Job> job;
    bool operator<(const Event& other) const {
      return std::tie(at, number) > std::tie(other.at, other.number);
    }
  };

  void Begin(std::vector<Step> steps, std::function<void()> then) {
    const auto job = std::make_shared<Job>(Job{std::move(steps), 0, std::move(then)});
    events_.push({now_, ++number_, job});
  }

  void Advance(Job& job) {
    if (job.at == job.steps.size()) return job.then();
    const Step step = job.steps[job.at++];
    double end = now_;
    if (step.server->rate > 0 && step.bytes > 0) {
      step.server->free_at = std::max(step.server->free_at, now_) +
                             static_cast<double>(step.bytes) / step.server->rate;
      end = step.server->free_at;
    }
    events_.push({end, ++number_, std::make_shared<Job>(std::move(job))});
  }

  // A slot of staging memory is free: the reader goes on.
  void StartNext(size_t reader) {
    Host& host = hosts_[reader];
    if (host.next == host.last) return;
    const Item& item = load_.items[host.next++];
    uint64_t copied = 0;
    for (const uint64_t bytes : item.to_rank) copied += bytes;
    Begin({{&host.storage, item.read}, {&host.memory, copied}},
          [this, reader, &item] { Deliver(reader, item); });
  }

  void Deliver(size_t reader, const Item& item) {
    const auto left = std::make_shared<size_t>(0);
    for (size_t rank = 0; rank < item.to_rank.size(); ++rank) {
      const uint64_t bytes = item.to_rank[rank];
      if (bytes == 0) continue;
      Host& to = hosts_[rank / machine_.gpus_per_host];
      std::vector<Step> steps;
      if (&to != &hosts_[reader]) {
        steps = {{&hosts_[reader].out, bytes}, {&to.in, bytes}, {&to.memory, bytes}};
      }
      steps.push_back({&to.links, bytes});
      steps.push_back({&links_[rank], bytes});
      ++*left;
      Begin(std::move(steps), [this, reader, left] {
        if (--*left == 0) StartNext(reader);
      });
    }
    if (*left == 0) StartNext(reader);
  }

  const Hardware& machine_;
  const Load& load_;
  std::deque<Host> hosts_;
  std::vector<Server> links_;
  std::priority_queue<Event> events_;
  uint64_t number_ = 0;
  double now_ = 0;
};

struct Case {
  std::string rules;
  uint32_t ranks = 8;
  uint32_t gpus = 8;
  bool cold = true;
  bool all_read = false;
};

class LoadModel : public testing::TestWithParam<Case> {};

// The model is a bound from below; with enough staging memory the load comes close to it.
TEST_P(LoadModel, IsWhatTheSimulationOfThePlanComesTo) {
  const Case& one = GetParam();
  const CheckpointIndex index = Llama(12, 2048);
  const Load load(index, one.rules, one.ranks);
  const Hardware machine = Machine(one.gpus);
  ASSERT_OK_AND_ASSIGN(
      const LoadPrediction prediction,
      PredictLoad(machine, load.shape,
                  one.cold ? ModelSource::kStorage : ModelSource::kPageCache,
                  one.all_read ? ModelReaders::kAll : ModelReaders::kRank0, ModelWay::kDirect));
  const double simulated = Simulation(machine, load, one.cold, one.all_read, 256).Run();
  EXPECT_GE(simulated, prediction.seconds * 0.999);
  EXPECT_LE(simulated, prediction.seconds * 1.25) << prediction.stages.front().stage;
}

INSTANTIATE_TEST_SUITE_P(Layouts, LoadModel,
                         testing::Values(Case{"fsdp:8"}, Case{"fsdp:8", 8, 8, false},
                                         Case{"replicate:8"}, Case{"replicate:8", 8, 8, false},
                                         Case{"hsdp:2x4", 8, 8, false}, Case{"fsdp:1", 1, 1},
                                         Case{"fsdp:1", 1, 1, false}, Case{"fsdp:16", 16},
                                         Case{"fsdp:64", 64}, Case{"hsdp:2x8", 16},
                                         Case{"fsdp:16", 16, 8, true, true},
                                         Case{"fsdp:32", 32, 8, true, true}));

LoadShape Even(uint32_t ranks, uint64_t each) {
  return {ranks * each, std::vector<uint64_t>(ranks, each)};
}

TEST(LoadModelBounds, NamesTheStageThatBounds) {
  const LoadShape shape = Even(8, 17'500'000'000);
  const auto bound = [&shape](ModelSource source, ModelWay way) {
    return PredictLoad(Machine(8), shape, source, ModelReaders::kRank0, way)
        .value()
        .stages.front();
  };
  EXPECT_EQ(bound(ModelSource::kStorage, ModelWay::kDirect).stage, "storage");
  EXPECT_EQ(bound(ModelSource::kPageCache, ModelWay::kDirect).stage, "memory");
  EXPECT_EQ(bound(ModelSource::kPageCache, ModelWay::kNccl).stage, "link") << "of rank 0's GPU";
  EXPECT_NEAR(bound(ModelSource::kPageCache, ModelWay::kNccl).seconds, 140.0 / 55, 1e-9);
}

TEST(LoadModelBounds, ReadersOnEveryHostShareTheReading) {
  const LoadShape shape = Even(64, 2'187'500'000);
  const auto seconds = [&shape](ModelReaders readers, double shared) {
    Hardware machine = Machine(8);
    machine.shared_storage = shared;
    return PredictLoad(machine, shape, ModelSource::kStorage, readers, ModelWay::kNccl)
        .value()
        .seconds;
  };
  EXPECT_NEAR(seconds(ModelReaders::kRank0, 0), 140.0 / 12, 1e-6);
  EXPECT_NEAR(seconds(ModelReaders::kAll, 0), 140.0 / 8 / 12, 1e-6);
  EXPECT_NEAR(seconds(ModelReaders::kAll, 20 * kGB), 140.0 / 20, 1e-6) << "storage has an end";
}

TEST(LoadModelBounds, ReplicasOnEveryHostAreReadOnEveryHost) {
  LoadShape shape;
  shape.storage_bytes = 10'000'000'000;
  shape.rank_bytes.assign(16, shape.storage_bytes);
  Hardware machine = Machine(8);
  machine.shared_storage = 16 * kGB;
  const LoadPrediction prediction =
      PredictLoad(machine, shape, ModelSource::kStorage, ModelReaders::kPerNode, ModelWay::kNccl)
          .value();
  EXPECT_NEAR(prediction.seconds, 20.0 / 16, 1e-6);
  for (const ModelStage& stage : prediction.stages) EXPECT_NE(stage.stage, "network");
}

TEST(LoadModelBounds, WhatHasToPassAndCannotIsAnError) {
  Hardware machine = Machine(8);
  machine.streams = 0;
  EXPECT_THAT(PredictLoad(machine, Even(16, 1000), ModelSource::kStorage, ModelReaders::kRank0,
                          ModelWay::kDirect),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  EXPECT_OK(PredictLoad(machine, Even(8, 1000), ModelSource::kStorage, ModelReaders::kRank0,
                        ModelWay::kDirect));
  EXPECT_FALSE(PredictLoad(machine, {}, ModelSource::kStorage, ModelReaders::kRank0,
                           ModelWay::kDirect)
                   .ok());
}

TEST(LoadModelBounds, NoBytesTakeOnlyTheFixedTime) {
  Hardware machine = Machine(8);
  machine.fixed_seconds = 0.25;
  EXPECT_EQ(PredictLoad(machine, Even(4, 0), ModelSource::kStorage, ModelReaders::kRank0,
                        ModelWay::kDirect)
                ->seconds,
            0.25);
}

}  // namespace
}  // namespace ckptd

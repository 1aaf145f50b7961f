// Compares the model of a load with a simulation that carries out the real plan, item by item in
// the readers' order, through queues of the same rates.
#include "client/cli/load_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/layout/rules_parser.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/schedule.h"
#include "tests/testing/llama_index.h"
#include "tests/testing/pipeline_simulation.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr double kGB = 1e9;

// Sends nothing. The schedule only needs to know that the memory is not mapped.
class NoSink final : public TransferSink {
 public:
  absl::Status Send(const Frame&) override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
};

// Bytes of one work item: read once, placed per rank, and placed per host with each byte once.
struct Item {
  uint64_t read = 0;
  std::vector<uint64_t> to_host;
  std::vector<uint64_t> to_rank;
};

class Load {
 public:
  Load(const CheckpointIndex& index, const std::string& rules, uint32_t ranks, uint32_t gpus) {
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
      item.to_host.resize((ranks + gpus - 1) / gpus);
      for (const ItemCopies::Active& active : copies.actives()) {
        const uint64_t bytes = LocalBytesBefore(active.geometry, work.end) -
                               LocalBytesBefore(active.geometry, work.begin);
        std::set<size_t> hosts;
        for (const Destination& to : copies.DestinationsOf(active)) {
          item.to_rank[to.target] += bytes;
          if (hosts.insert(to.target / gpus).second) item.to_host[to.target / gpus] += bytes;
        }
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

// The direct way, with rank 0's host or all hosts as readers.
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

  double Run() { return events_.Run(); }

 private:
  struct Host {
    RateServer storage, memory, links, out, in;
    size_t next = 0;  // the next item that it reads
    size_t last = 0;
  };

  // A slot of staging memory is free, so the reader continues.
  void StartNext(size_t reader) {
    Host& host = hosts_[reader];
    if (host.next == host.last) return;
    const Item& item = load_.items[host.next++];
    uint64_t copied = item.to_host[reader];
    for (size_t rank = 0; rank < item.to_rank.size(); ++rank) {
      if (rank / machine_.gpus_per_host != reader) copied += item.to_rank[rank];
    }
    events_.Begin({{&host.storage, item.read}, {&host.memory, copied}},
                  [this, reader, &item] { Deliver(reader, item); });
  }

  void Deliver(size_t reader, const Item& item) {
    const auto left = std::make_shared<size_t>(0);
    for (size_t rank = 0; rank < item.to_rank.size(); ++rank) {
      const uint64_t bytes = item.to_rank[rank];
      if (bytes == 0) continue;
      Host& to = hosts_[rank / machine_.gpus_per_host];
      std::vector<PipelineSimulation::Stage> steps;
      if (&to != &hosts_[reader]) {
        steps = {{&hosts_[reader].out, bytes}, {&to.in, bytes}, {&to.memory, bytes}};
      }
      steps.push_back({&to.links, bytes});
      steps.push_back({&links_[rank], bytes});
      ++*left;
      events_.Begin(std::move(steps), [this, reader, left] {
        if (--*left == 0) StartNext(reader);
      });
    }
    if (*left == 0) StartNext(reader);
  }

  const Hardware& machine_;
  const Load& load_;
  std::deque<Host> hosts_;
  std::vector<RateServer> links_;
  PipelineSimulation events_;
};

struct Case {
  std::string rules;
  uint32_t ranks = 8;
  uint32_t gpus = 8;
  bool cold = true;
  bool all_read = false;
};

class LoadModel : public testing::TestWithParam<Case> {};

TEST_P(LoadModel, IsWhatTheSimulationOfThePlanComesTo) {
  const Case& one = GetParam();
  const CheckpointIndex index = LlamaIndex(12, 2048);
  const Load load(index, one.rules, one.ranks, one.gpus);
  const Hardware machine = LargeHosts(one.gpus);
  ASSERT_OK_AND_ASSIGN(
      const LoadPrediction prediction,
      PredictLoad(machine, load.shape,
                  one.cold ? ModelSource::kStorage : ModelSource::kPageCache,
                  one.all_read ? ModelReaders::kAll : ModelReaders::kRank0, ModelWay::kDirect));
  // Enough staging memory for everything in flight.
  ExpectCloseAbove(Simulation(machine, load, one.cold, one.all_read, 256).Run(), prediction);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LoadModel,
                         testing::Values(Case{"fsdp:8"}, Case{"fsdp:8", 8, 8, false},
                                         Case{"replicate:8"}, Case{"replicate:8", 8, 8, false},
                                         Case{"hsdp:2x4", 8, 8, false}, Case{"fsdp:1", 1, 1},
                                         Case{"fsdp:1", 1, 1, false}, Case{"fsdp:16", 16},
                                         Case{"fsdp:64", 64}, Case{"hsdp:2x8", 16},
                                         Case{"fsdp:16", 16, 8, true, true},
                                         Case{"fsdp:32", 32, 8, true, true},
                                         Case{"replicate:16", 16, 8, false, true},
                                         Case{"hsdp:4x4", 16, 8, false, true}));

LoadShape Even(uint32_t ranks, uint64_t each) {
  return {ranks * each, ranks * each, std::vector<uint64_t>(ranks, each)};
}

TEST(LoadModelBounds, NamesTheStageThatBounds) {
  const LoadShape shape = Even(8, 17'500'000'000);
  const auto bound = [&shape](ModelSource source, ModelWay way) {
    return PredictLoad(LargeHosts(8), shape, source, ModelReaders::kRank0, way)
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
    Hardware machine = LargeHosts(8);
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
  shape.storage_bytes = shape.distinct_bytes = 10'000'000'000;
  shape.rank_bytes.assign(16, shape.storage_bytes);
  Hardware machine = LargeHosts(8);
  machine.shared_storage = 16 * kGB;
  const LoadPrediction prediction =
      PredictLoad(machine, shape, ModelSource::kStorage, ModelReaders::kPerNode, ModelWay::kNccl)
          .value();
  EXPECT_NEAR(prediction.seconds, 20.0 / 16, 1e-6);
  for (const ModelStage& stage : prediction.stages) EXPECT_NE(stage.stage, "network");
}

TEST(LoadModelBounds, ReplicasAreWrittenOnceForTheGpusOfAHostAndOnceForEachRankElsewhere) {
  LoadShape shape;
  shape.storage_bytes = shape.distinct_bytes = 10'000'000'000;
  shape.rank_bytes.assign(16, shape.storage_bytes);  // two hosts
  const auto written = [&shape](ModelReaders readers) {
    const auto prediction = PredictLoad(LargeHosts(8), shape, ModelSource::kPageCache, readers,
                                        ModelWay::kDirect).value();
    for (const ModelStage& stage : prediction.stages) {
      if (stage.stage == "memory") return stage.bytes;
    }
    return uint64_t{0};
  };
  EXPECT_EQ(written(ModelReaders::kRank0), 90'000'000'000U);
  EXPECT_EQ(written(ModelReaders::kPerNode), 10'000'000'000U);
  EXPECT_EQ(written(ModelReaders::kAll), 85'000'000'000U) << "half of 90, and half of 80 that come";
}

TEST(LoadModelBounds, WhatHasToPassAndCannotIsAnError) {
  Hardware machine = LargeHosts(8);
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
  Hardware machine = LargeHosts(8);
  machine.fixed_seconds = 0.25;
  EXPECT_EQ(PredictLoad(machine, Even(4, 0), ModelSource::kStorage, ModelReaders::kRank0,
                        ModelWay::kDirect)
                ->seconds,
            0.25);
}

}  // namespace
}  // namespace ckptd

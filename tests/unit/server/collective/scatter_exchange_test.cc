// Ranks in threads, files on disk. What arrives over a communicator must equal what a transfer
// into mapped memory would place.
#include "server/collective/scatter_exchange.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

#include "common/base/reasons.h"
#include "server/collective/scatter_reader.h"
#include "server/transfer/transfer.h"
#include "tests/testing/comms_in_process.h"
#include "tests/testing/idle_comms.h"
#include "tests/testing/random_source.h"
#include "tests/testing/small_memory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/transit_backend.h"

namespace ckptd {
namespace {

constexpr uint32_t kRanks = 6;

class ScatterWorld {
 public:
  ScatterWorld(uint64_t seed, const std::string& layout) {
    RandomSource source(seed, 80);
    WriteFiles(folder_.path(), source.index);
    index = std::make_shared<const CheckpointIndex>(std::move(source.index));
    const LayoutRules rules = LayoutRules::Parse(layout).value();
    std::vector<uint32_t> numbers(kRanks);
    std::iota(numbers.begin(), numbers.end(), 0u);
    group.emplace(GroupPlan::Make(index, rules.ForRanks(*index, numbers).value(), {}).value());
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      plans.push_back(PlanRank(*index, rules.ForRank(*index, rank).value(), {}).value());
      slabs.push_back(std::make_shared<BytesInProcess>(plans.back().slab_bytes, std::byte{0xee}));
    }
  }

  std::vector<std::vector<std::byte>> Expected() const {
    std::vector<std::vector<std::byte>> expected;
    std::vector<TransferTarget> targets;
    for (const RankPlan& plan : plans) expected.emplace_back(plan.slab_bytes, std::byte{0xee});
    for (uint32_t r = 0; r < kRanks; ++r) targets.push_back({&plans[r], {{expected[r]}}, nullptr});
    TransferProgress progress(kRanks);
    EXPECT_OK(RunTransfer(*index, targets, {}, progress).status());
    return expected;
  }
  void ExpectTensors() const {
    const auto expected = Expected();
    for (uint32_t r = 0; r < kRanks; ++r) {
      for (const PlannedTensor& tensor : plans[r].tensors) {
        const auto begin = static_cast<ptrdiff_t>(tensor.offset);
        const auto end = begin + static_cast<ptrdiff_t>(tensor.bytes);
        EXPECT_TRUE(std::equal(expected[r].begin() + begin, expected[r].begin() + end,
                               slabs[r]->content().begin() + begin))
            << "rank " << r << ", " << tensor.name;
      }
    }
  }
  // Padding is unchanged or zero.
  void ExpectCleanPadding() const {
    for (uint32_t r = 0; r < kRanks; ++r) {
      std::vector<bool> padding(plans[r].slab_bytes, true);
      for (const PlannedTensor& tensor : plans[r].tensors) {
        std::fill_n(padding.begin() + static_cast<ptrdiff_t>(tensor.offset), tensor.bytes, false);
      }
      for (uint64_t at = 0; at < plans[r].slab_bytes; ++at) {
        const std::byte byte = slabs[r]->content()[at];
        ASSERT_TRUE(!padding[at] || byte == std::byte{0} || byte == std::byte{0xee})
            << "rank " << r << ", byte " << at;
      }
    }
  }
  // The call of each rank, as a leader makes it.
  std::vector<ScatterCall> Calls(size_t readers, const ScatterSize& size) const {
    const ScatterOrder order = OrderScatter(*index, size);
    std::vector<const PlannedRank*> planned;
    for (uint32_t rank = 0; rank < kRanks; ++rank) planned.push_back(group->Find(rank));
    const std::vector<ReplicaSet> sets = FindReplicas(planned);
    const std::vector<uint32_t> whole =
        sets.size() > 1 ? group->WholeOn(planned, 1) : std::vector<uint32_t>();
    std::vector<ScatterCall> calls(kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ScatterCall& call = calls[rank];
      call.comm_id = "1";
      call.rank = rank;
      call.ranks.resize(kRanks);
      std::iota(call.ranks.begin(), call.ranks.end(), 0u);
      call.readers.resize(readers);
      std::iota(call.readers.begin(), call.readers.end(), 0u);
      for (const ReplicaSet& set : sets) {
        const bool in = std::binary_search(set.ranks.begin(), set.ranks.end(), rank);
        if (in) call.replicas = set.ranks;
      }
      call.fanout = FanoutFor(sets.size());
      call.size = size;
      call.whole = whole;
      call.digest = ScatterDigest(call, order, plans[rank].digest);
    }
    return calls;
  }

  struct Outcome {
    absl::Status status;
    uint64_t storage_bytes = 0;
    uint64_t carried_bytes = 0;
    std::vector<uint64_t> done;
  };
  Outcome Run(const ScatterCall& call, CommsInProcess& comms,
              const std::function<absl::Status()>& interrupted) {
    CommunicatorCache keeper(&comms, "", false);
    const bool reads = std::count(call.readers.begin(), call.readers.end(), call.rank) > 0;
    return reads ? Read(call, keeper, interrupted) : Receive(call, keeper, interrupted);
  }

  std::shared_ptr<const CheckpointIndex> index;
  std::optional<GroupPlan> group;
  std::vector<RankPlan> plans;
  std::vector<std::shared_ptr<BytesInProcess>> slabs;
  std::atomic<int> refusals = 0;  // of transit memory
  ScatterExchange::MakeRoom make_room = [](uint64_t, const absl::Status& why) { return why; };

 private:
  Outcome Read(const ScatterCall& call, CommunicatorCache& keeper,
               const std::function<absl::Status()>& interrupted) {
    TransitBackend backend(refusals);
    ScatterReader reader(
        {backend, keeper, "c", Clock::now() + std::chrono::seconds(60), *group, make_room}, call);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const bool own = rank == call.rank;
      reader.Add(
          {rank, rank, group->Find(rank), own ? SlabView{{}, slabs[rank]} : SlabView(), own});
    }
    TransferProgress progress(kRanks);
    TransferOptions options;
    options.threads = 3;
    options.interrupted = interrupted;
    const auto result = reader.Run(options, progress);
    if (!result.ok()) return {result.status(), 0, 0, {}};
    return {absl::OkStatus(), result->storage_bytes, reader.carried_bytes(), result->done};
  }
  Outcome Receive(const ScatterCall& call, CommunicatorCache& keeper,
                  const std::function<absl::Status()>& interrupted) {
    const ScatterOrder order = OrderScatter(*index, call.size);
    absl::Status status = CheckScatterDigest(call, order, plans[call.rank].digest);
    if (!status.ok()) return {status, 0, 0, {}};
    const Deadline deadline = Clock::now() + std::chrono::seconds(60);
    const WholeTensors whole = WholeTensors::Of(*index, call.whole).value();
    ScatterExchange exchange(call, order, whole, deadline, interrupted);
    status = exchange.SetOwn({&plans[call.rank], slabs[call.rank]});
    if (status.ok()) status = CarryOut(keeper, call, "c", deadline, exchange);
    return {status, 0, exchange.received_bytes(), {}};
  }

  TempFolder folder_;
};

// Runs all ranks to their ends. Once one has failed, the others are told, as the leader does.
std::vector<ScatterWorld::Outcome> RunAll(ScatterWorld& world,
                                          const std::vector<ScatterCall>& calls, CommsWorld& wires,
                                          uint32_t failing = kRanks, size_t fail_at = SIZE_MAX) {
  std::vector<ScatterWorld::Outcome> outcomes(calls.size());
  std::atomic<bool> failed = false;
  const auto interrupted = [&failed] {
    return failed ? absl::CancelledError("another rank failed") : absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < calls.size(); ++rank) {
    threads.emplace_back([&, rank] {
      CommsInProcess comms(wires);
      if (rank == failing) comms.fail_at = fail_at;
      outcomes[rank] = world.Run(calls[rank], comms, interrupted);
      if (!outcomes[rank].status.ok()) failed = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

struct ScatterCase {
  uint64_t seed = 1;
  size_t layout = 0;
  size_t readers = 1;
};

class Scatters : public testing::TestWithParam<ScatterCase> {};

TEST_P(Scatters, BringEveryRankItsBytesAndReadThemOnce) {
  ScatterWorld world(GetParam().seed, SixRankLayouts()[GetParam().layout]);
  CommsWorld wires;
  const auto outcomes = RunAll(world, world.Calls(GetParam().readers, {200, 6}), wires);
  uint64_t storage_bytes = 0;
  std::vector<uint64_t> done(kRanks);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_OK(outcomes[rank].status);
    storage_bytes += outcomes[rank].storage_bytes;
    for (size_t r = 0; r < outcomes[rank].done.size(); ++r) done[r] += outcomes[rank].done[r];
  }
  world.ExpectTensors();
  world.ExpectCleanPadding();
  const std::vector<uint64_t> read = world.group->ReadBytes();
  EXPECT_EQ(storage_bytes, std::accumulate(read.begin(), read.end(), uint64_t{0}));
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(done[rank], world.plans[rank].tensor_bytes) << "rank " << rank;
  }
}

// Each rank receives its tensors once, and short padding, and nothing else.
TEST_P(Scatters, SendEachRankWhatItNeedsAndNoMore) {
  ScatterWorld world(GetParam().seed, SixRankLayouts()[GetParam().layout]);
  CommsWorld wires;
  const auto outcomes = RunAll(world, world.Calls(GetParam().readers, {200, 6}), wires);
  std::vector<uint64_t> came(kRanks);
  for (const CommsWorld::Sent& one : wires.sent()) came[one.to] += one.bytes;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_OK(outcomes[rank].status);
    const uint64_t carried = outcomes[rank].carried_bytes;
    EXPECT_GE(came[rank], carried) << "rank " << rank;
    EXPECT_LE(came[rank], carried + kSlabAlignment * world.plans[rank].tensors.size());
    if (GetParam().readers == 1) {
      EXPECT_EQ(carried, rank == 0 ? 0 : world.plans[rank].tensor_bytes);
    }
  }
}

std::vector<ScatterCase> Cases() {
  std::vector<ScatterCase> cases;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (size_t layout = 0; layout < SixRankLayouts().size(); ++layout) {
      for (const size_t readers : {size_t{1}, size_t{kRanks}}) {
        cases.push_back({seed, layout, readers});
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Random, Scatters, testing::ValuesIn(Cases()), [](const auto& one) {
  return "seed" + std::to_string(one.param.seed) + "layout" + std::to_string(one.param.layout) +
         (one.param.readers == 1 ? "" : "all");
});

TEST(ScatterExchangeTest, WhoeverIsMetLaterHasAsLongToConnectAsWhoIsMetFirst) {
  size_t met_later = 0;
  for (const std::string& layout : SixRankLayouts()) {
    ScatterWorld world(1, layout);
    CommsWorld wires;
    for (const auto& outcome : RunAll(world, world.Calls(1, {200, 6}), wires)) {
      ASSERT_OK(outcome.status);
    }
    std::set<uint32_t> met;
    const std::vector<CommsWorld::Asked> exchanges = wires.asked(0);
    for (size_t i = 0; i < exchanges.size(); ++i) {
      bool connects = false;
      for (const uint32_t peer : exchanges[i].to) connects = met.insert(peer).second || connects;
      if (!connects) continue;
      EXPECT_GE(exchanges[i].patience, ScatterExchange::PatienceWith(kRanks)) << layout << ": " << i;
      met_later += i > 0;
    }
  }
  EXPECT_GT(met_later, 0u) << "or nothing was tried";
}

class FailingScatters : public testing::TestWithParam<uint32_t> {};

TEST_P(FailingScatters, EndOnAllRanksWithTheReason) {
  ScatterWorld world(2, "hsdp:2x3");
  CommsWorld wires;
  const uint32_t failing = GetParam();
  const auto outcomes = RunAll(world, world.Calls(1, {200, 6}), wires, failing, 3);
  EXPECT_THAT(outcomes[failing].status,
              FailsWith(absl::StatusCode::kUnavailable, reason::kNcclFailed));
  EXPECT_FALSE(outcomes[0].status.ok());
}
INSTANTIATE_TEST_SUITE_P(Ranks, FailingScatters, testing::Values(0u, 1u, 4u));

TEST(ScatterReaderTest, WhatPassesThroughItsMemoryHasRoomMadeForIt) {
  ScatterWorld world(2, "fsdp:6");
  world.refusals = 3;
  int made = 0;  // by rank 0, one step at a time
  world.make_room = [&made](uint64_t bytes, const absl::Status& refused) {
    EXPECT_GT(bytes, 0u);
    EXPECT_THAT(refused, Says("the GPU is full"));
    ++made;
    return absl::OkStatus();
  };
  CommsWorld wires;
  for (const auto& outcome : RunAll(world, world.Calls(1, {200, 6}), wires)) {
    ASSERT_OK(outcome.status);
  }
  EXPECT_EQ(made, 3);
  world.ExpectTensors();
}

TEST(ScatterReaderTest, EndsWhereNoRoomCanBeMadeForWhatPassesThroughItsMemory) {
  ScatterWorld world(2, "fsdp:6");
  world.refusals = 1'000'000;
  CommsWorld wires;
  const auto outcomes = RunAll(world, world.Calls(1, {200, 6}), wires);
  EXPECT_THAT(outcomes[0].status,
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_THAT(outcomes[0].status, Says("allocating memory to send from (--comm host needs none)"));
}

TEST(ScatterReaderTest, EndsWhenItsFilesCannotBeRead) {
  ScatterWorld world(2, "fsdp:6");
  std::filesystem::remove(world.index->files[0].path);
  CommsWorld wires;
  const auto outcomes = RunAll(world, world.Calls(1, {200, 6}), wires);
  EXPECT_THAT(outcomes[0].status, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
}

TEST(ScatterReaderTest, RefusesAnOrderThatIsNotItsOwnBeforeTheFirstOperation) {
  ScatterWorld world(2, "fsdp:6");
  CommsWorld wires;
  std::vector<ScatterCall> calls = world.Calls(1, {200, 6});
  for (ScatterCall& call : calls) call.size.step_bytes = 300;
  for (const auto& outcome : RunAll(world, calls, wires)) {
    EXPECT_THAT(outcome.status, FailsWith(absl::StatusCode::kInternal, reason::kPlanMismatch));
  }
  EXPECT_TRUE(wires.sent().empty());
}

// How a rank of a communicator waits for the others to join.
struct Joining {
  bool until_the_loads_end = false;
  bool busy = false;
};

Joining JoinAs(const ScatterCall& call) {
  IdleComms comms;
  CommunicatorCache keeper(&comms, "", false);
  const Deadline deadline = Clock::now() + std::chrono::hours(1);
  const ScatterOrder order;
  const WholeTensors whole;
  ScatterExchange exchange(call, order, whole, deadline, [] { return absl::OkStatus(); });
  TransferProgress progress(0);
  exchange.CountIn(progress);
  Joining seen;
  comms.refusal = absl::CancelledError("enough");
  comms.on_join = [&](Deadline until) {
    EXPECT_TRUE(progress.joining);
    seen = {until == deadline, progress.busy};
  };
  EXPECT_EQ(CarryOut(keeper, call, "c", deadline, exchange), comms.refusal);
  EXPECT_FALSE(progress.joining);
  return seen;
}

TEST(ScatterReaderTest, WhoCannotTellWhetherOthersStillOpenTheirFilesWaitsForThemAsLongAsForTheLoad) {
  ScatterCall call;
  call.ranks = {0, 1, 2};
  call.replicas = {0};
  call.readers = {0};
  EXPECT_FALSE(JoinAs(call).until_the_loads_end) << "nobody else has any to open";
  EXPECT_TRUE(JoinAs(call).busy) << "nobody asks";
  call.rank = 1;
  EXPECT_TRUE(JoinAs(call).until_the_loads_end) << "the reader may";
  call.readers = {0, 1, 2};
  EXPECT_TRUE(JoinAs(call).until_the_loads_end);
  EXPECT_FALSE(JoinAs(call).busy) << "so rank 0 sees who is";
  call.rank = 0;
  EXPECT_TRUE(JoinAs(call).until_the_loads_end) << "it gives up when nobody is busy";
  EXPECT_FALSE(JoinAs(call).busy);
  call.ranks = {1, 2, 3};
  EXPECT_FALSE(JoinAs(call).until_the_loads_end) << "rank 0 does not see to it";
  EXPECT_TRUE(JoinAs(call).busy);
}

TEST(CommunicatorCache, GoesOnWithACommunicatorUntilItsMembersChangeOrItFails) {
  CommsWorld wires;
  CommsInProcess comms(wires);
  CommunicatorCache keeper(&comms, "", /*keep=*/true);
  const auto use = [&](uint64_t epoch, const std::vector<uint32_t>& ranks, const absl::Status& end) {
    GroupCommOptions options;
    options.id = keeper.IdFor(epoch, ranks, {keeper.held_id()}).value();
    ASSERT_OK(keeper.Join(options, Clock::now()).status());
    keeper.Done(end);
  };
  use(1, {0, 1}, absl::OkStatus());
  use(1, {0, 1}, absl::OkStatus());
  EXPECT_EQ(comms.joined, 1u);
  use(1, {0, 1, 2}, absl::OkStatus());
  EXPECT_EQ(comms.joined, 2u);
  use(2, {0, 1, 2}, absl::OkStatus());
  EXPECT_EQ(comms.joined, 3u);
  use(2, {0, 1, 2}, absl::CancelledError("it failed"));
  EXPECT_EQ(keeper.held_id(), "");
  use(2, {0, 1, 2}, absl::OkStatus());
  EXPECT_EQ(comms.joined, 4u);
  keeper.Drop();
  use(2, {0, 1, 2}, absl::OkStatus());
  EXPECT_EQ(comms.joined, 5u);
}

TEST(CommunicatorCache, OfOthersGoesOnOnlyWithACommunicatorThatAllOfThemHoldAndThatWasMadeForThem) {
  CommsWorld wires;
  CommsInProcess comms(wires);
  CommunicatorCache keeper(&comms, "", /*keep=*/true);
  const std::string id = keeper.IdFor(1, {2, 3}, {"", ""}).value();
  EXPECT_EQ(keeper.IdFor(1, {2, 3}, {id, id}).value(), id);
  EXPECT_NE(keeper.IdFor(1, {2, 4}, {id, id}).value(), id);
  EXPECT_EQ(keeper.IdFor(1, {2, 3}, {id, id}).value(), id);
  const std::string next = keeper.IdFor(1, {2, 3}, {id, ""}).value();
  EXPECT_NE(next, id);
  EXPECT_NE(keeper.IdFor(1, {2, 3}, {id, id}).value(), id);
  const std::string last = keeper.IdFor(1, {2, 3}, {}).value();
  keeper.Drop();
  EXPECT_NE(keeper.IdFor(1, {2, 3}, {last, last}).value(), last);
  EXPECT_EQ(keeper.held_id(), "");
}

// A communicator in a cache, and what happened to it.
class FailingComm : public ::testing::Test {
 protected:
  FailingComm() {
    comms_.on_gone = [this] { ++gone_; };
    options_.id = "1";
  }
  absl::Status Join() { return keeper_.Join(options_, Clock::now()).status(); }

  IdleComms comms_;
  int gone_ = 0;
  CommunicatorCache keeper_{&comms_, "", /*keep=*/true};
  GroupCommOptions options_;
};

TEST_F(FailingComm, WhatHasFailedIsSeenToOnlyWhenOthersHaveHeardOfIt) {
  ASSERT_OK(Join());
  keeper_.Done(absl::OkStatus());
  keeper_.AwaitTeardown();
  EXPECT_EQ(gone_, 0) << "it is still good";
  keeper_.Done(absl::CancelledError("it failed"));
  EXPECT_EQ(gone_, 0);
  keeper_.AwaitTeardown();
  EXPECT_EQ(gone_, 1);

  comms_.refusal = absl::CancelledError("nobody came");
  comms_.awaited = 0;
  EXPECT_EQ(Join(), comms_.refusal);
  keeper_.Done(comms_.refusal);
  EXPECT_EQ(comms_.awaited, 0);
  keeper_.AwaitTeardown();
  EXPECT_EQ(comms_.awaited, 1);
}

TEST_F(FailingComm, WhatHasFailedIsSeenToBeforeAnotherIsJoined) {
  ASSERT_OK(Join());
  keeper_.Done(absl::CancelledError("it failed"));
  ASSERT_OK(Join());
  EXPECT_EQ(gone_, 1);
}

TEST(CommunicatorCache, WithoutALibrarySaysWhy) {
  CommunicatorCache keeper(nullptr, "there is no GPU here", true);
  EXPECT_EQ(keeper.version(), "");
  EXPECT_THAT(keeper.IdFor(1, {0, 1}, {}), FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNoNccl));
  EXPECT_THAT(keeper.Join({}, Clock::now()), Says("there is no GPU here"));
}

}  // namespace
}  // namespace ckptd

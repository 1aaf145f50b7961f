// Joining, ending, and what is refused on the way.
#include <gmock/gmock.h>

#include "tests/unit/fakes/nccl/ranks.h"

namespace ckptd::fake_nccl {
namespace {

const std::chrono::milliseconds kShort{100};

TEST(FakeNcclComm, TheVersionIsThatOfTheHeaderOrScripted) {
  Ranks("version = 21900").RunRanks(1, [](const Rank& self) {
    static_cast<void>(self.Id());
    int version = 0;
    EXPECT_EQ(ncclGetVersion(&version), ncclSuccess);
    EXPECT_EQ(version, 21900);
  });
}

TEST(FakeNcclComm, WhoTakesTheFirstAnswerForTheLastIsRefused) {
  Ranks().RunRanks(1, [](const Rank& self) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, self.Id(), 0, &config), ncclInProgress);
    unsigned char* memory = Memory(8, 0);
    EXPECT_EQ(ncclBroadcast(memory, memory, 8, ncclUint8, 0, comm, NewStream()),
              ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST(FakeNcclComm, JoiningWaitsForTheLastRank) {
  Ranks().RunRanks(3, [](const Rank& self) {
    const ncclUniqueId id = self.Id();
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    if (self.rank == 2) self.Hear();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 3, id, self.rank, &config), ncclInProgress);
    if (self.rank == 0) {
      EXPECT_EQ(Settled(comm, kShort), ncclInProgress);
    }
    if (self.rank == 0) self.Say();
    EXPECT_EQ(Settled(comm), ncclSuccess);
    Leave(comm);
  });
}

TEST(FakeNcclComm, WhatCannotBeIsRefusedAtOnce) {
  Ranks().RunRanks(1, [](const Rank& self) {
    const ncclUniqueId id = self.Id();
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 2, &config), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, -1, &config), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 0, id, 0, &config), ncclInvalidArgument);
    config.minCTAs = 9;
    config.maxCTAs = 8;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInvalidArgument);
    config = NonBlocking();
    config.magic = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(comm, nullptr);
  });
}

TEST(FakeNcclComm, WithoutACurrentContextItIsAMistake) {
  const Ranks world;
  world.RunRanks(1, [](const Rank& self) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, self.Id(), 0, &config), ncclUnhandledCudaError);
  });
  EXPECT_EQ(world.NcclTraced("violation: a communicator is made without a current context"), 1);
}

// Ranks 0 and 1 on GPU 0; what joining ends with.
ncclResult_t TwoOnOneGpu(const Ranks& world, bool allowed) {
  const std::vector<Channel> channels(2);
  std::vector<Child> children;
  for (int rank = 0; rank < 2; ++rank) {
    const auto body = [allowed](const Rank& self) {
      if (allowed) ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
      ncclComm_t comm = nullptr;
      ncclConfig_t config = NonBlocking();
      EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, self.Id(), self.rank, &config), ncclInProgress);
      const ncclResult_t result = Settled(comm);
      self.to_test->Send(1, &result, sizeof result);
      EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    };
    children.push_back(world.StartRank(rank, 2, body, 0, channels[static_cast<std::size_t>(rank)]));
  }
  Ranks::PassId(channels);
  ncclResult_t results[2] = {};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    channels[rank].Receive(0, &results[rank], sizeof results[rank]);
    EXPECT_EQ(children[rank].Wait(), 0);
  }
  EXPECT_EQ(results[0], results[1]);
  return results[0];
}

TEST(FakeNcclComm, TwoRanksOnOneGpuNeedTheVariableAndItsVersion) {
  EXPECT_EQ(TwoOnOneGpu(Ranks(), false), ncclInvalidUsage);
  EXPECT_EQ(TwoOnOneGpu(Ranks(), true), ncclSuccess);
  EXPECT_EQ(TwoOnOneGpu(Ranks("version = 22809"), true), ncclInvalidUsage);
}

TEST(FakeNcclComm, AnIdMakesOneCommunicator) {
  Ranks("connect_ms = 50").RunRanks(2, [](const Rank& self) {
    const ncclUniqueId id = self.Id();
    Leave(Joined(self, id));
    ncclComm_t again = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&again, 2, id, self.rank, &config), ncclInProgress);
    EXPECT_EQ(Settled(again), ncclRemoteError);
    EXPECT_EQ(ncclCommAbort(again), ncclSuccess);
  });
}

TEST(FakeNcclComm, OneRankTwiceHoldsAllUpUntilTheyAbort) {
  const Ranks world;
  world.RunRanks(2, [](const Rank& self) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, self.Id(), 0, &config), ncclInProgress);
    EXPECT_EQ(Settled(comm, kShort), ncclInProgress);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
  EXPECT_EQ(world.NcclTraced("violation: one rank joins twice"), 1);
}

TEST(FakeNcclComm, TheTrainersIdInTheEnvironmentIsAMistake) {
  const Ranks world;
  world.RunRanks(1, [](const Rank& self) {
    ::setenv("NCCL_COMM_ID", "10.0.0.1:1234", 1);
    static_cast<void>(self.Id());
  });
  EXPECT_EQ(world.NcclTraced("violation: NCCL_COMM_ID"), 1);
}

TEST(FakeNcclComm, TheEnvironmentMakesItBlock) {
  Ranks().RunRanks(1, [](const Rank& self) {
    ::setenv("NCCL_COMM_BLOCKING", "1", 1);
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, self.Id(), 0, &config), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST(FakeNcclComm, FinalizingWaitsForTheLastRank) {
  Ranks().RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    if (self.rank == 1) self.Hear();
    EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
    if (self.rank == 0) {
      EXPECT_EQ(Settled(comm, kShort), ncclInProgress);
    }
    if (self.rank == 0) self.Say();
    EXPECT_EQ(Settled(comm), ncclSuccess);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument) << "finalized twice";
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST(FakeNcclComm, CommunicatorsThatNobodyEndedAreCounted) {
  const Ranks world;
  world.RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    if (self.rank == 0) {
      EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    }
  });
  EXPECT_EQ(world.NcclTraced("\"event\":\"atexit\",\"leaks\":0"), 1);
  EXPECT_EQ(world.NcclTraced("\"event\":\"atexit\",\"leaks\":1"), 1);
}

TEST(FakeNcclComm, AnOperationWithNobodyIsRefusedAndFailsItsGroup) {
  Ranks().RunRanks(1, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    unsigned char* memory = Memory(8, 0);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclSend(memory, 8, ncclUint8, 1, comm, NewStream()), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(Settled(comm), ncclInvalidArgument) << "the communicator is lost";
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST(FakeNcclComm, ASendToOneselfNeedsItsReceive) {
  Ranks().RunRanks(1, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    unsigned char* memory = Memory(8, 0);
    EXPECT_EQ(ncclSend(memory, 8, ncclUint8, 0, comm, NewStream()), ncclInvalidUsage);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST(FakeNcclComm, ScriptedAnswersComeInsteadOfTheWork) {
  const Ranks world(
      "fault = ncclGetUniqueId nth=2 error=2\n"
      "fault = ncclCommInitRankConfig rank=0 error=3");
  world.RunRanks(1, [](const Rank& self) {
    ncclUniqueId id = self.Id();
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSystemError);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclInternalError);
    EXPECT_THAT(ncclGetLastError(nullptr), ::testing::StrEq("scripted"));
  });
}

}  // namespace
}  // namespace ckptd::fake_nccl

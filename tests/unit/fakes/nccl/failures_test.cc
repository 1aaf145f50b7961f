// Ranks that differ, die, or never end: as the real one, the fake stands still until it is aborted.
#include "tests/unit/fakes/nccl/ranks.h"

namespace ckptd::fake_nccl {
namespace {

const std::chrono::milliseconds kShort{100};
constexpr std::size_t kMany = 300'001;

// One exchange that does not end; then everybody aborts, and the stream is free.
void StandsStill(const Rank& self, const std::function<void(ncclComm_t, CUstream)>& exchange) {
  const ncclComm_t comm = Joined(self);
  const CUstream stream = NewStream();
  exchange(comm, stream);
  EXPECT_EQ(Settled(comm), ncclSuccess);
  EXPECT_FALSE(Done(stream, kShort));
  EXPECT_EQ(Settled(comm), ncclSuccess) << "and nobody is told why";
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  EXPECT_TRUE(Done(stream));
}

TEST(FakeNcclFailures, UnlikeSizesStandStillAndAreReported) {
  const Ranks world;
  world.RunRanks(2, [](const Rank& self) {
    StandsStill(self, [&](ncclComm_t comm, CUstream stream) {
      unsigned char* memory = Memory(64, 0);
      static_cast<void>(self.rank == 0 ? ncclSend(memory, 64, ncclUint8, 1, comm, stream)
                                       : ncclRecv(memory, 32, ncclUint8, 0, comm, stream));
    });
  });
  EXPECT_EQ(world.NcclTraced("violation: a send and its receive differ"), 1);
}

TEST(FakeNcclFailures, UnlikeRootsStandStillAndAreReported) {
  const Ranks world;
  world.RunRanks(2, [](const Rank& self) {
    StandsStill(self, [&](ncclComm_t comm, CUstream stream) {
      unsigned char* memory = Memory(64, 0);
      // Each expects the other to send.
      static_cast<void>(ncclBroadcast(memory, memory, 64, ncclUint8, 1 - self.rank, comm, stream));
    });
  });
  EXPECT_GE(world.NcclTraced("violation: ranks differ in root or size"), 1);
}

TEST(FakeNcclFailures, UnlikeOrderStandsStillAndIsReported) {
  const Ranks world;
  world.RunRanks(2, [](const Rank& self) {
    StandsStill(self, [&](ncclComm_t comm, CUstream stream) {
      unsigned char* memory = Memory(64, 0);
      if (self.rank == 0) {
        static_cast<void>(ncclSend(memory, 64, ncclUint8, 1, comm, stream));
      } else {
        static_cast<void>(ncclBroadcast(memory, memory, 64, ncclUint8, 0, comm, stream));
      }
    });
  });
  EXPECT_EQ(world.NcclTraced("violation: ranks differ in the order"), 1);
}

TEST(FakeNcclFailures, AnOperationThatHangsIsNoticedByNobody) {
  Ranks("fault = ncclRecv rank=1 hang=1").RunRanks(2, [](const Rank& self) {
    StandsStill(self, [&](ncclComm_t comm, CUstream stream) {
      unsigned char* memory = Memory(64, 0);
      static_cast<void>(self.rank == 0 ? ncclSend(memory, 64, ncclUint8, 1, comm, stream)
                                       : ncclRecv(memory, 64, ncclUint8, 0, comm, stream));
    });
  });
}

TEST(FakeNcclFailures, ALateErrorComesInTheMiddle) {
  Ranks("fault = ncclRecv rank=1 late=2 after_bytes=100000").RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* memory = Memory(kMany, self.rank == 0 ? 1 : 0);
    static_cast<void>(self.rank == 0 ? ncclSend(memory, kMany, ncclUint8, 1, comm, stream)
                                     : ncclRecv(memory, kMany, ncclUint8, 0, comm, stream));
    static_cast<void>(Settled(comm));  // it may be there already
    if (self.rank == 1) {
      EXPECT_TRUE(Eventually([&] { return Settled(comm) == ncclSystemError; }));
      EXPECT_FALSE(Done(stream, kShort));
      EXPECT_EQ(memory[0], 1);
      self.Say();
    } else {
      self.Hear();
    }
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_TRUE(Done(stream));
  });
}

// Rank 1 dies while it receives; what rank 0's communicator then says.
void DieInTheMiddle(const std::string& config, ncclResult_t expected) {
  const Ranks world(config + "\nfault = ncclRecv rank=1 die=1 after_bytes=100000");
  const auto body = [expected](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* memory = Memory(kMany, 1);
    static_cast<void>(self.rank == 0 ? ncclSend(memory, kMany, ncclUint8, 1, comm, stream)
                                     : ncclRecv(memory, kMany, ncclUint8, 0, comm, stream));
    static_cast<void>(Settled(comm));  // it may be gone already
    self.Hear();                       // that rank 1 is gone
    EXPECT_TRUE(Eventually([&] { return Settled(comm) == expected; }));
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_TRUE(Done(stream));
  };
  const std::vector<Channel> channels(2);
  Child zero = world.StartRank(0, 2, body, 0, channels[0]);
  Child one = world.StartRank(1, 2, body, 1, channels[1]);
  Ranks::PassId(channels);
  EXPECT_TRUE(WIFSIGNALED(one.Wait()));
  world.signal().Say(0);
  EXPECT_EQ(zero.Wait(), 0);
}

TEST(FakeNcclFailures, APeersDeathIsSilentOrAnError) {
  DieInTheMiddle("", ncclSuccess);
  DieInTheMiddle("deaths_seen = 1", ncclRemoteError);
}

TEST(FakeNcclFailures, JoiningFailsLateOrNever) {
  const Ranks world(
      "fault = ncclCommInitRankConfig nth=1 late=3\n"
      "fault = ncclCommInitRankConfig nth=2 hang=1");
  world.RunRanks(1, [](const Rank& self) {
    ncclUniqueId id = self.Id();
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NonBlocking();
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
    EXPECT_EQ(Settled(comm), ncclInternalError);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
    EXPECT_EQ(Settled(comm, kShort), ncclInProgress);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST(FakeNcclFailures, WhatHadNotBegunEndsWhenItsTurnComesAfterAnAbort) {
  Ranks("", "lazy = 1").RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* memory = Memory(8, self.rank == 0 ? 1 : 0);
    static_cast<void>(self.rank == 0 ? ncclSend(memory, 8, ncclUint8, 1, comm, stream)
                                     : ncclRecv(memory, 8, ncclUint8, 0, comm, stream));
    EXPECT_EQ(Settled(comm), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_TRUE(Done(stream));
    if (self.rank == 1) {
      EXPECT_TRUE(Holds(memory, 8, 0));
    }
  });
}

TEST(FakeNcclFailures, MemoryThatGoesUnderAnExchangeIsReported) {
  const Ranks world;
  world.RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    if (self.rank == 0) {
      const CUmemGenericAllocationHandle handle = fake_cuda::MakeMemory(fake_cuda::kUnit);
      const CUdeviceptr address = fake_cuda::MapMemory(handle, fake_cuda::kUnit);
      static_cast<void>(ncclSend(reinterpret_cast<void*>(address), 8, ncclUint8, 1, comm, stream));
      EXPECT_EQ(Settled(comm), ncclSuccess);
      EXPECT_EQ(cuMemUnmap(address, fake_cuda::kUnit), CUDA_ERROR_INVALID_VALUE);
      self.Say();
      EXPECT_TRUE(Done(stream));
    } else {
      self.Hear();
      static_cast<void>(ncclRecv(Memory(8, 0), 8, ncclUint8, 0, comm, stream));
      EXPECT_EQ(Settled(comm), ncclSuccess);
      EXPECT_TRUE(Done(stream));
    }
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
  EXPECT_EQ(world.Traced("violation: memory is unmapped while queued work uses it"), 1);
}

}  // namespace
}  // namespace ckptd::fake_nccl

// What moves, when, and in which order.
#include "tests/unit/fakes/nccl/ranks.h"

namespace ckptd::fake_nccl {
namespace {

constexpr std::size_t kMany = 300'001;  // more than a link takes at once

class FakeNcclTransfer : public ::testing::TestWithParam<const char*> {};

// Every rank polls, so all modes of the driver get there.
INSTANTIATE_TEST_SUITE_P(Modes, FakeNcclTransfer,
                         ::testing::Values("lazy = 0", "lazy = 1", "lazy_ms = 1"),
                         [](const auto& mode) {
                           const std::string text = mode.param;
                           return text == "lazy = 0"   ? "eager"
                                  : text == "lazy = 1" ? "lazy"
                                                       : "late";
                         });

TEST_P(FakeNcclTransfer, GroupedSendsReachTheirReceivers) {
  Ranks("", GetParam()).RunRanks(3, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* one = Memory(kMany, self.rank == 0 ? 11 : 0);
    unsigned char* two = Memory(kMany, self.rank == 0 ? 22 : 0);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    if (self.rank == 0) {
      EXPECT_EQ(ncclSend(one, kMany, ncclUint8, 1, comm, stream), ncclSuccess);
      EXPECT_EQ(ncclSend(two, 8, ncclFloat32, 1, comm, stream), ncclSuccess);
      EXPECT_EQ(ncclSend(two, kMany, ncclUint8, 2, comm, stream), ncclSuccess);
    } else {
      EXPECT_EQ(ncclRecv(one, kMany, ncclUint8, 0, comm, stream), ncclSuccess);
      if (self.rank == 1) {
        EXPECT_EQ(ncclRecv(two, 32, ncclInt8, 0, comm, stream), ncclSuccess);
      }
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
    EXPECT_EQ(Settled(comm), ncclSuccess);
    ASSERT_TRUE(Done(stream));
    EXPECT_TRUE(Holds(one, kMany, self.rank == 2 ? 22 : 11));
    if (self.rank == 1) {
      EXPECT_TRUE(Holds(two, 32, 22));
    }
    if (self.rank == 1) {
      EXPECT_TRUE(Holds(two + 32, kMany - 32, 0)) << "and no more than that";
    }
    Leave(comm);
  });
}

TEST_P(FakeNcclTransfer, ABroadcastReachesAllRanks) {
  Ranks("", GetParam()).RunRanks(3, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* from = Memory(kMany, 7);
    unsigned char* to = Memory(kMany, 0);
    const void* source = self.rank == 1 ? from : nullptr;
    static_cast<void>(ncclBroadcast(source, to, kMany, ncclUint8, 1, comm, stream));
    EXPECT_EQ(Settled(comm), ncclSuccess);
    ASSERT_TRUE(Done(stream));
    EXPECT_TRUE(Holds(to, kMany, 7));
    Leave(comm);
  });
}

TEST_P(FakeNcclTransfer, BothWaysAndAroundMoveAtOnce) {
  Ranks("", GetParam()).RunRanks(3, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* mine = Memory(kMany, static_cast<unsigned char>(self.rank + 1));
    unsigned char* theirs = Memory(3 * kMany, 0);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(ncclSend(mine, kMany, ncclUint8, peer, comm, stream), ncclSuccess);
      unsigned char* to = theirs + static_cast<std::size_t>(peer) * kMany;
      EXPECT_EQ(ncclRecv(to, kMany, ncclUint8, peer, comm, stream), ncclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
    EXPECT_EQ(Settled(comm), ncclSuccess);
    ASSERT_TRUE(Done(stream));
    for (std::size_t peer = 0; peer < 3; ++peer) {
      EXPECT_TRUE(Holds(theirs + peer * kMany, kMany, static_cast<unsigned char>(peer + 1)));
    }
    Leave(comm);
  });
}

TEST(FakeNcclOrder, AGroupIsNotInItsStreamBeforeNcclWasAskedTwice) {
  Ranks().RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* memory = Memory(8, self.rank == 0 ? 5 : 0);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t begun = self.rank == 0 ? ncclSend(memory, 8, ncclUint8, 1, comm, stream)
                                              : ncclRecv(memory, 8, ncclUint8, 0, comm, stream);
    EXPECT_EQ(begun, ncclInProgress);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS) << "who waits for the stream alone is found";
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    EXPECT_EQ(Settled(comm), ncclSuccess);
    ASSERT_TRUE(Done(stream));
    EXPECT_TRUE(Holds(memory, 8, 5));
    Leave(comm);
  });
}

TEST(FakeNcclOrder, ASendEndsNoEarlierThanItsReceiverBegins) {
  Ranks().RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* memory = Memory(8, 1);
    if (self.rank == 0) {
      static_cast<void>(ncclSend(memory, 8, ncclUint8, 1, comm, stream));
      EXPECT_EQ(Settled(comm), ncclSuccess);
      EXPECT_FALSE(Done(stream, std::chrono::milliseconds(100)));
      self.Say();
    } else {
      self.Hear();
      static_cast<void>(ncclRecv(memory, 8, ncclUint8, 0, comm, stream));
      EXPECT_EQ(Settled(comm), ncclSuccess);
    }
    EXPECT_TRUE(Done(stream));
    Leave(comm);
  });
}

TEST(FakeNcclOrder, WorkBehindAnExchangeSeesItsBytes) {
  for (const char* mode : {"lazy = 0", "lazy = 1", "lazy_ms = 0"}) {
    Ranks("", mode).RunRanks(2, [](const Rank& self) {
      const ncclComm_t comm = Joined(self);
      const CUstream stream = NewStream();
      unsigned char* memory = Memory(kMany, self.rank == 0 ? 9 : 0);
      unsigned char* copy = Memory(kMany, 0);
      static_cast<void>(self.rank == 0 ? ncclSend(memory, kMany, ncclUint8, 1, comm, stream)
                                       : ncclRecv(memory, kMany, ncclUint8, 0, comm, stream));
      EXPECT_EQ(Settled(comm), ncclSuccess);
      EXPECT_EQ(cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(copy),
                                  reinterpret_cast<CUdeviceptr>(memory), kMany, stream),
                CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_TRUE(Holds(copy, kMany, 9));
      Leave(comm);
    });
  }
}

TEST(FakeNcclOrder, AllStreamsOfAGroupWaitForItAndItForThem) {
  Ranks().RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream first = NewStream();
    const CUstream second = NewStream();
    unsigned char* a = Memory(8, 1);
    unsigned char* b = Memory(8, 1);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (const CUstream stream : {first, second}) {
      unsigned char* memory = stream == first ? a : b;
      static_cast<void>(self.rank == 0 ? ncclSend(memory, 8, ncclUint8, 1, comm, stream)
                                       : ncclRecv(memory, 8, ncclUint8, 0, comm, stream));
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
    if (self.rank == 1) self.Hear();
    EXPECT_EQ(Settled(comm), ncclSuccess);
    if (self.rank == 0) {
      EXPECT_FALSE(Done(second, std::chrono::milliseconds(100)));
      EXPECT_FALSE(Done(first, std::chrono::milliseconds(1)));
      self.Say();
    }
    EXPECT_TRUE(Done(first));
    EXPECT_TRUE(Done(second));
    Leave(comm);
  });
}

TEST(FakeNcclOrder, GroupsOfOneCommunicatorFollowEachOtherOnAllStreams) {
  Ranks().RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream first = NewStream();
    const CUstream second = NewStream();
    unsigned char* memory = Memory(16, 1);
    for (const CUstream stream : {first, second}) {
      if (stream == first && self.rank == 1) self.Hear();
      static_cast<void>(self.rank == 0 ? ncclSend(memory, 8, ncclUint8, 1, comm, stream)
                                       : ncclRecv(memory, 8, ncclUint8, 0, comm, stream));
      EXPECT_EQ(Settled(comm), ncclSuccess);
    }
    if (self.rank == 0) {
      EXPECT_FALSE(Done(second, std::chrono::milliseconds(50)));
    }
    if (self.rank == 0) self.Say();
    EXPECT_TRUE(Done(second));
    EXPECT_EQ(cuStreamQuery(first), CUDA_SUCCESS) << "the later one ended, so the first has";
    Leave(comm);
  });
}

TEST(FakeNcclOrder, ASlowLinkTakesItsTime) {
  Ranks("link_bytes_per_second = 1000000").RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    unsigned char* memory = Memory(kMany, 3);
    const auto begun = Clock::now();
    static_cast<void>(self.rank == 0 ? ncclSend(memory, kMany, ncclUint8, 1, comm, stream)
                                     : ncclRecv(memory, kMany, ncclUint8, 0, comm, stream));
    EXPECT_EQ(Settled(comm), ncclSuccess);
    EXPECT_TRUE(Done(stream));
    if (self.rank == 0) {  // the other one may begin late
      EXPECT_GT(Clock::now() - begun, std::chrono::milliseconds(200));
    }
    Leave(comm);
  });
}

TEST(FakeNcclOrder, MemoryThatIsReadOnlyBreaksTheContextOfWhoReceives) {
  Ranks().RunRanks(2, [](const Rank& self) {
    const ncclComm_t comm = Joined(self);
    const CUstream stream = NewStream();
    const CUmemGenericAllocationHandle handle = fake_cuda::MakeMemory(fake_cuda::kUnit);
    CUmemAccessDesc access = fake_cuda::Access(CU_MEM_ACCESS_FLAGS_PROT_READ, self.rank);
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAddressReserve(&address, fake_cuda::kUnit, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(address, fake_cuda::kUnit, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(address, fake_cuda::kUnit, &access, 1), CUDA_SUCCESS);
    auto* memory = reinterpret_cast<void*>(address);
    static_cast<void>(self.rank == 0 ? ncclSend(memory, 8, ncclUint8, 1, comm, stream)
                                     : ncclRecv(memory, 8, ncclUint8, 0, comm, stream));
    static_cast<void>(Settled(comm));  // the context may be lost already
    if (self.rank == 1) {
      EXPECT_TRUE(Eventually([&] { return cuStreamQuery(stream) == CUDA_ERROR_ILLEGAL_ADDRESS; }));
    }
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

}  // namespace
}  // namespace ckptd::fake_nccl

#include "server/comm/nccl/communicator.h"

#include <gmock/gmock.h>

#include <atomic>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/unit/server/comm/nccl/group.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kBytes = 300'001;
constexpr std::chrono::milliseconds kShort{200};

absl::Status Exchange(Communicator& comm, const Member& self, const CudaAllocation& memory,
                      CUstream stream, Communicator::Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(comm.Begin());
  CKPTD_RETURN_IF_ERROR(self.rank == 0 ? comm.Send(memory.address(), kBytes, 1, stream)
                                       : comm.Receive(memory.address(), kBytes, 0, stream));
  CKPTD_RETURN_IF_ERROR(comm.End(deadline));
  return comm.Wait(stream, deadline);
}

class CommunicatorModes : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Drivers, CommunicatorModes,
                         ::testing::Values("lazy = 0", "lazy = 1", "lazy_ms = 1"),
                         [](const auto& mode) {
                           const std::string text = mode.param;
                           return text == "lazy = 0"   ? "eager"
                                  : text == "lazy = 1" ? "lazy"
                                                       : "late";
                         });

TEST_P(CommunicatorModes, SlicesAndReplicasReachTheirRanks) {
  NcclGroup group("", GetParam());
  group.Run(3, [](const Member& self) {
    const auto comm = self.Join();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation slice = self.Memory(2 * kBytes, self.rank == 0 ? 5 : 0);
    const CudaAllocation replica = self.Memory(kBytes, self.rank == 0 ? 7 : 0);
    ASSERT_TRUE(comm->Begin().ok());
    for (uint32_t peer = 1; self.rank == 0 && peer < 3; ++peer) {
      EXPECT_TRUE(comm->Send(slice.address(), kBytes * peer, peer, stream.get()).ok());
    }
    if (self.rank != 0) {
      EXPECT_TRUE(comm->Receive(slice.address(), kBytes * self.rank, 0, stream.get()).ok());
    }
    EXPECT_TRUE(
        comm->Broadcast(replica.address(), replica.address(), kBytes, 0, stream.get()).ok());
    const absl::Status ended = comm->End(Patiently());
    EXPECT_TRUE(ended.ok()) << ended;
    const absl::Status waited = comm->Wait(stream.get(), Patiently());
    EXPECT_TRUE(waited.ok()) << waited;
    EXPECT_EQ(ByteAt(slice, 0), 5);
    EXPECT_EQ(ByteAt(slice, kBytes), self.rank == 1 ? 0 : 5);
    EXPECT_EQ(ByteAt(replica, kBytes - 1), 7);
    const absl::Status closed = comm->Close(Patiently());
    EXPECT_TRUE(closed.ok()) << closed;
  });
  EXPECT_EQ(group.world().NcclTraced("\"leaks\":0"), 3);
  EXPECT_EQ(group.world().NcclTraced("violation"), 0);
  EXPECT_EQ(group.world().Traced("violation"), 0);
}

TEST(Communicator, ManyGroupsGoThroughOneAfterTheOther) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    const auto comm = self.Join();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, self.rank == 0 ? 1 : 0);
    for (int round = 0; round < 20; ++round) {
      const absl::Status status = Exchange(*comm, self, memory, stream.get(), Patiently());
      ASSERT_TRUE(status.ok()) << status;
    }
    EXPECT_TRUE(comm->Close(Patiently()).ok());
    EXPECT_TRUE(comm->Close(Patiently()).ok()) << "nothing more to do";
  });
}

TEST(Communicator, AMissingRankIsNamedWhenTheDeadlinePasses) {
  NcclGroup group;
  group.Start({0}, 3, [](const Member& self) {
    const absl::Status status = self.TryJoin(In(kShort)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(status), reason::kRankMissing);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("joining"), HasSubstr("for ranks 1, 2;")));
    EXPECT_EQ(FactsOf(status).at("rank"), "0");
  });
  EXPECT_EQ(group.child(0).Wait(), 0);
  EXPECT_EQ(group.world().NcclTraced("\"leaks\":0"), 1);
}

TEST(Communicator, OnlyThoseWhoTakePartAreWaitedFor) {
  NcclGroup group;
  group.Run(3, [](const Member& self) {
    const auto comm = self.Join();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 0);
    if (self.rank != 0) return;
    const absl::Status status = Exchange(*comm, self, memory, stream.get(), In(kShort));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(status), reason::kDeadline);
    EXPECT_THAT(MessageOf(status), HasSubstr("waiting for rank 1;"));
    EXPECT_EQ(comm->Begin(), status) << "the first error stays";
    EXPECT_EQ(comm->Close(Patiently()), status);
    EXPECT_TRUE(stream.Wait(std::chrono::seconds(30)).ok()) << "its kernel is gone";
  });
  EXPECT_EQ(group.world().NcclTraced("\"leaks\":0"), 3);
}

TEST(Communicator, AKilledRankIsLearntByTheDeadlineAndEveryStreamIsFree) {
  NcclGroup group("link_bytes_per_second = 100000");  // the send takes 3 s
  group.Start({0, 1}, 2, [](const Member& self) {
    const auto comm = self.Join();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 1);
    if (self.rank == 0) self.signal->Say(1);
    const absl::Status status =
        Exchange(*comm, self, memory, stream.get(), In(std::chrono::seconds(1)));
    EXPECT_EQ(ReasonOf(status), reason::kDeadline) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("rank 1"));
    EXPECT_TRUE(stream.Wait(std::chrono::seconds(30)).ok());
  });
  group.signal().Hear(0);
  group.child(1).Kill();
  EXPECT_EQ(group.child(0).Wait(), 0);
}

TEST(Communicator, ADeathThatNcclNoticesEndsTheWait) {
  NcclGroup group("deaths_seen = 1\nfault = ncclRecv rank=1 die=1 after_bytes=100000");
  group.Start({0, 1}, 2, [](const Member& self) {
    const auto comm = self.Join();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 1);
    const absl::Status status = Exchange(*comm, self, memory, stream.get(), Patiently());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), reason::kNcclFailed);
    EXPECT_EQ(FactsOf(status).at("rank"), "0");
  });
  EXPECT_TRUE(WIFSIGNALED(group.child(1).Wait()));
  EXPECT_EQ(group.child(0).Wait(), 0);
}

TEST(Communicator, AnErrorThatComesLateEndsTheWait) {
  NcclGroup group("fault = ncclRecv rank=1 late=3 after_bytes=100000");
  group.Run(2, [](const Member& self) {
    const auto comm = self.Join();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 1);
    const auto deadline = self.rank == 0 ? In(std::chrono::seconds(1)) : Patiently();
    const absl::Status status = Exchange(*comm, self, memory, stream.get(), deadline);
    // Rank 0 may have finished its part.
    if (self.rank == 0) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(ReasonOf(status), reason::kNcclFailed);
    EXPECT_EQ(FactsOf(status).at("rank"), "1");
  });
}

TEST(Communicator, AnInterruptionEndsEveryWait) {
  NcclGroup group("fault = ncclRecv rank=1 hang=1");
  group.Run(2, [](const Member& self) {
    auto options = self.Options();
    bool stop = false;
    options.interrupted = [&] {
      return stop ? absl::AbortedError("the epoch is over") : absl::OkStatus();
    };
    auto joined = Communicator::Join(self.library, self.device, options, Patiently());
    ASSERT_TRUE(joined.ok()) << joined.status();
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 1);
    stop = true;
    const absl::Status status = Exchange(**joined, self, memory, stream.get(), Patiently());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(MessageOf(status), HasSubstr("the epoch is over"));
  });
}

TEST(Communicator, AnErrorComesBeforeTheAbortWhichIsLeftBehindAndSaidIfItNeverReturns) {
  NcclGroup group("fault = ncclCommAbort hang=1");
  group.Start({0}, 2, [](const Member& self) {
    const auto comm = *Communicator::Make(self.library, self.device, self.Options());
    const auto begun = std::chrono::steady_clock::now();
    const absl::Status status = comm->Enter(In(kShort));
    EXPECT_LT(std::chrono::steady_clock::now() - begun, Communicator::kEndTimeout);
    EXPECT_EQ(ReasonOf(status), reason::kRankMissing);
    EXPECT_THAT(MessageOf(comm->Abort()),
                AllOf(HasSubstr("aborting"), HasSubstr("start this daemon again")));
    EXPECT_TRUE(comm->Abort().ok()) << "it is gone";
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(group.child(0).Wait(), 0);
}

TEST(Communicator, TwoRanksMayShareAGpu) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    Member crowded = self;
    const CudaDriver& driver = **CudaDriver::Load();
    crowded.device = CudaDevice::Open(driver, ListGpus(driver).value().front()).value();
    const auto comm = crowded.Join();
    ASSERT_NE(comm, nullptr);
    const CudaStream stream = *CudaStream::Make(crowded.device);
    const CudaAllocation memory = crowded.Memory(kBytes, self.rank == 0 ? 9 : 0);
    const absl::Status status = Exchange(*comm, crowded, memory, stream.get(), Patiently());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ByteAt(memory, kBytes - 1), 9);
  });
}

TEST(Communicator, TwoRanksOnOneGpuAreRefusedByNameWhereNcclDoesNotOfferIt) {
  ::setenv("CKPTD_NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    Member crowded = self;
    const CudaDriver& driver = **CudaDriver::Load();
    crowded.device = CudaDevice::Open(driver, ListGpus(driver).value().front()).value();
    const absl::Status status = crowded.TryJoin(Patiently()).status();
    // The process of rank 0 serves the id, so it lives until the other has its answer.
    self.rank == 0 ? self.Hear() : self.Say();
    EXPECT_EQ(ReasonOf(status), reason::kNcclFailed);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("GPU-"), HasSubstr("two ranks use one GPU")));
  });
  ::unsetenv("CKPTD_NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST(Communicator, ErrorsCallRanksByTheirNames) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    CommunicatorOptions options = self.Options();
    options.names = {4, 7};
    const auto comm = *Communicator::Join(self.library, self.device, options, Patiently());
    if (self.rank == 1) {
      self.Hear();
      return;
    }
    const absl::Status status = comm->Close(In(kShort));
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("on rank 4"), HasSubstr("for rank 7;")));
    EXPECT_EQ(FactsOf(status).at("rank"), "4");
    self.Say();
  });
}

TEST(Communicator, IsInterruptedByWhoUsesItNow) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    const auto comm = self.Join();
    if (self.rank == 1) {
      self.Hear();
      return;
    }
    comm->Interrupt([] { return absl::CancelledError("the load is over"); });
    // The error is unchanged and names no rank.
    EXPECT_EQ(comm->Close(Patiently()), absl::CancelledError("the load is over"));
    self.Say();
  });
}

TEST(Communicator, ClosingWaitsForTheOthersAndNamesThem) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    const auto comm = self.Join();
    if (self.rank == 1) {
      self.Hear();
      return;
    }
    const absl::Status status = comm->Close(In(kShort));
    EXPECT_EQ(ReasonOf(status), reason::kDeadline);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("closing"), HasSubstr("for rank 1;")));
    self.Say();
  });
  EXPECT_EQ(group.world().NcclTraced("\"leaks\":0"), 2);
}

TEST(Communicator, OptionsThatCannotBeAreRefused) {
  NcclGroup group;
  group.Start({0}, 2, [](const Member& self) {
    const auto refused = [&](auto change, const char* why) {
      CommunicatorOptions options = self.Options();
      change(options);
      const absl::Status status =
          Communicator::Join(self.library, self.device, options, Patiently()).status();
      EXPECT_EQ(ReasonOf(status), reason::kInvalidRequest);
      EXPECT_THAT(MessageOf(status), HasSubstr(why));
    };
    refused([](auto& o) { o.world_size = 1; }, "does not need NCCL");
    refused([](auto& o) { o.rank = 2; }, "there is no rank 2");
    refused([](auto& o) { o.max_ctas = 3; }, "3 CTAs");
    refused([](auto& o) { o.max_ctas = 9; }, "9 CTAs");
  });
  EXPECT_EQ(group.child(0).Wait(), 0);
  EXPECT_EQ(group.world().NcclTraced("ncclCommInitRankConfig"), 0);
}

TEST(Communicator, AnOperationThatCannotBeEndsIt) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 1);
    auto comm = self.Join();
    EXPECT_THAT(MessageOf(comm->Send(memory.address(), 8, 1 - self.rank, stream.get())),
                HasSubstr("no group was begun"));
    if (self.rank == 0) {
      EXPECT_FALSE(comm->Begin().ok());
    }
    comm.reset();
    // The open group is dropped with the communicator, so the thread can use another one.
    EXPECT_EQ(self.library->GroupEnd(), ncclInvalidUsage);
  });
  EXPECT_EQ(group.world().NcclTraced("violation"), 0);
}

TEST(Communicator, AnOpenGroupIsGivenUpWithItsCommunicator) {
  NcclGroup group;
  group.Run(2, [](const Member& self) {
    const CudaStream stream = *CudaStream::Make(self.device);
    const CudaAllocation memory = self.Memory(kBytes, 1);
    auto comm = self.Join();
    EXPECT_TRUE(comm->Begin().ok());
    EXPECT_TRUE(comm->Send(memory.address(), 8, 1 - self.rank, stream.get()).ok());
    EXPECT_THAT(MessageOf(comm->Send(memory.address(), 8, 2, stream.get())),
                HasSubstr("there is no such rank"));
    EXPECT_TRUE(stream.Wait(std::chrono::seconds(30)).ok());
    EXPECT_EQ(self.library->GroupEnd(), ncclInvalidUsage) << "no group is open";
  });
  EXPECT_EQ(group.world().NcclTraced("violation"), 0);
  EXPECT_EQ(group.world().NcclTraced("\"leaks\":0"), 2);
}

TEST(Communicator, TheEnvironmentOfTheTrainerDoesNotReachIt) {
  NcclGroup group;
  ::setenv("NCCL_COMM_BLOCKING", "1", 1);
  ::setenv("NCCL_COMM_ID", "10.0.0.1:1234", 1);
  const auto clean = [](const Member& self) {
    EXPECT_EQ(ReasonOf(self.TryJoin(In(kShort)).status()), reason::kRankMissing);
  };
  group.Start({0}, 2, clean);
  ::unsetenv("NCCL_COMM_BLOCKING");
  ::unsetenv("NCCL_COMM_ID");
  EXPECT_EQ(group.child(0).Wait(), 0);
  EXPECT_EQ(group.world().NcclTraced("violation"), 0);
}

}  // namespace
}  // namespace ckptd

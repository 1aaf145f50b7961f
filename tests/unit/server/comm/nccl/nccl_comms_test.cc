// What an aborted communicator keeps on its GPU, on the fakes.
#include "server/comm/nccl/nccl_comms.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/comm/nccl/group.h"

namespace ckptd {
namespace {

class DeviceBytes final : public StagedMemory {
 public:
  explicit DeviceBytes(CudaAllocation memory) : memory_(std::move(memory)) {}
  uint64_t bytes() const override { return memory_.bytes(); }
  uint64_t address() const override { return memory_.address(); }
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override {
    return absl::UnimplementedError("not here");
  }
  unsigned Lanes() const override { return 1; }
  absl::Status Read(uint64_t, std::span<std::byte>) override {
    return absl::UnimplementedError("not here");
  }

 private:
  const CudaAllocation memory_;
};

GroupCommOptions OptionsOf(const Member& self) {
  GroupCommOptions options;
  options.id = std::string(reinterpret_cast<const char*>(self.id.data()), self.id.size());
  options.rank = self.rank;
  options.names = {0, 1};
  options.name = "test";
  return options;
}

absl::StatusOr<std::unique_ptr<GroupComm>> JoinAs(const Member& self) {
  NcclComms comms(self.library, [&self] { return self.device; });
  return comms.Join(OptionsOf(self), Patiently());
}

// Rank 1 sends memory that rank 0 never receives.
absl::Status Exchange(GroupComm& comm, const Member& self, const DeviceBytes& bytes) {
  CKPTD_RETURN_IF_ERROR(comm.Begin());
  CKPTD_RETURN_IF_ERROR(self.rank == 0 ? comm.Receive(bytes, 0, 1000, 1)
                                       : comm.Send(bytes, 0, 1000, 0));
  CKPTD_RETURN_IF_ERROR(comm.End(Patiently()));
  return comm.Wait(In(std::chrono::milliseconds(200)));
}

TEST(NcclComms, WhereNcclNeverLetsGoItsMemoryIsKept) {
  NcclGroup group("fault = ncclCommAbort rank=0 hang=1\nfault = ncclRecv rank=0 hang=1");
  group.Run(2, [](const Member& self) {
    const uint64_t before = self.device->FreeBytes().value();
    auto comm = JoinAs(self);
    ASSERT_OK(comm);
    {
      const DeviceBytes bytes(self.Memory(1000, 7));
      const absl::Status status = Exchange(**comm, self, bytes);
      EXPECT_TRUE(self.rank == 1 || ReasonOf(status) == reason::kDeadline) << status;
      comm->reset();
    }
    // Aborted work may leave its stream a moment later. Until then its memory is kept.
    const auto end = Patiently();
    while (self.rank == 1 && self.device->Busy() && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    if (self.rank == 1) self.device->FreeDeferred();
    EXPECT_EQ(self.device->Busy(), self.rank == 0);
    EXPECT_EQ(self.device->FreeBytes().value() < before, self.rank == 0);
  });
}

// Less than the end of a communicator that NCCL never lets go of is waited for.
constexpr std::chrono::seconds kAtOnce = Communicator::kEndTimeout;

TEST(NcclComms, AnErrorComesAtOnceAndWhatAKernelMayTouchIsKeptUntilNcclHasLetGo) {
  // The kernel of rank 0 runs on after the error, until the destructor's wait has timed out.
  NcclGroup group("fault = ncclCommAbort rank=0 hang=1\nfault = ncclRecv rank=0 hang=1");
  group.Run(2, [](const Member& self) {
    const uint64_t before = self.device->FreeBytes().value();
    auto comm = JoinAs(self);
    ASSERT_OK(comm);
    const auto begun = std::chrono::steady_clock::now();
    {
      const DeviceBytes bytes(self.Memory(1000, 7));
      const absl::Status status = Exchange(**comm, self, bytes);
      EXPECT_TRUE(self.rank == 1 || ReasonOf(status) == reason::kDeadline) << status;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begun, kAtOnce);
    if (self.rank == 1) return;
    EXPECT_TRUE(self.device->Busy());
    EXPECT_LT(self.device->FreeBytes().value(), before) << "freed under a kernel";
  });
  EXPECT_EQ(group.world().Traced("violation"), 0);
}

TEST(NcclComms, AJoinThatFailedIsToldAtOnceAndItsEndIsWaitedForAfterwards) {
  NcclGroup group("fault = ncclCommAbort delay_ms=2000");
  group.Start({0}, 2, [](const Member& self) {
    NcclComms comms(self.library, [&self] { return self.device; });
    const auto begun = std::chrono::steady_clock::now();
    const auto deadline = begun + std::chrono::milliseconds(200);
    EXPECT_EQ(ReasonOf(comms.Join(OptionsOf(self), deadline).status()), reason::kRankMissing);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(2200));
    comms.AwaitEnds();
    EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(2200));
  });
  EXPECT_EQ(group.child(0).Wait(), 0);
  EXPECT_EQ(group.world().NcclTraced("\"leaks\":0"), 1);
}

TEST(NcclComms, OneThatDoesNothingWhenItIsGivenUpKeepsNothing) {
  NcclGroup group("fault = ncclCommAbort hang=1");
  group.Run(2, [](const Member& self) {
    auto comm = JoinAs(self);
    ASSERT_OK(comm);
    comm->reset();
    EXPECT_FALSE(self.device->Busy());
  });
}

TEST(NcclComms, OneThatWasClosedLeavesNothing) {
  NcclGroup group("fault = ncclCommAbort hang=1");
  group.Run(2, [](const Member& self) {
    auto comm = JoinAs(self);
    ASSERT_OK(comm);
    ASSERT_OK((*comm)->Close(Patiently()));
    comm->reset();
    EXPECT_FALSE(self.device->Busy());
  });
}

}  // namespace
}  // namespace ckptd

// What a communicator that was given up leaves to its GPU, on the fakes.
#include "server/comm/nccl/nccl_comms.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"
#include "tests/unit/server/comm/nccl/group.h"

namespace ckptd {
namespace {

absl::StatusOr<std::unique_ptr<GroupComm>> JoinAs(const Member& self) {
  GroupCommOptions options;
  options.id = std::string(reinterpret_cast<const char*>(self.id.data()), self.id.size());
  options.rank = self.rank;
  options.names = {0, 1};
  options.name = "test";
  NcclComms comms(self.library, [&self] { return self.device; });
  return comms.Join(std::move(options), Patiently());
}

TEST(NcclComms, WhereNcclNeverLetsGoTheGpuIsBusyForGood) {
  NcclGroup group("fault = ncclCommAbort rank=0 hang=1");
  group.Run(2, [](const Member& self) {
    auto comm = JoinAs(self);
    ASSERT_OK(comm);
    EXPECT_FALSE(self.device->Busy());
    comm->reset();
    EXPECT_EQ(self.device->Busy(), self.rank == 0);
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

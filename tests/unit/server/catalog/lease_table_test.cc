#include "server/catalog/lease_table.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/small_memory.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kFailedPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kUnauthenticated = absl::StatusCode::kUnauthenticated;
constexpr char kName[] = "checkpoints/a";

class LeaseTableTest : public ::testing::Test {
 protected:
  // The checkpoint, ACTIVE, meant for clients of that mode.
  void Load(AttachMode intended = AttachMode::kShared) {
    LoadRequest request = RuleRequest();
    request.intended = intended;
    ASSERT_OK(MakeActive(catalog_, kName, request));
  }
  uint32_t LeasesOf(const std::string& name) { return catalog_.Get(name).value().leases; }

  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(4);
  Catalog catalog_{*memory_, 0, 1};
  LeaseTable leases_{catalog_};
};

TEST_F(LeaseTableTest, RefusesACheckpointThatIsNotThere) {
  EXPECT_THAT(leases_.Open(kName, AttachMode::kShared),
              FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
}

TEST_F(LeaseTableTest, WhoReadsTheMemoryKeepsItUntilTheEndThoughAClientTakesIt) {
  Load(AttachMode::kExclusive);
  const auto memory = catalog_.leases().Look(kName).value().memory;
  auto view = memory->Read();
  ASSERT_NE(view, nullptr);
  ASSERT_FALSE(view->segments.empty());
  const uint64_t held = memory_->Usage().used;
  memory->TransferOwnership();
  EXPECT_TRUE(memory->GivenUp());
  EXPECT_EQ(memory->Read(), nullptr);
  EXPECT_TRUE(memory->View().segments.empty());
  EXPECT_EQ(memory_->Usage().used, held);
  EXPECT_EQ(view->segments[0][0], std::byte{});  // mapped, or this test ends here
  view.reset();
  EXPECT_LT(memory_->Usage().used, held);
}

TEST_F(LeaseTableTest, RefusesACheckpointThatIsStillLoading) {
  catalog_.Begin(kName, RuleRequest());
  EXPECT_THAT(leases_.Open(kName, AttachMode::kShared),
              FailsWith(kFailedPrecondition, reason::kNotActive));
}

TEST_F(LeaseTableTest, RefusesAFailedCheckpointWithTheReasonOfItsLoad) {
  catalog_.Begin(kName, RuleRequest());
  catalog_.Fail(kName, absl::InternalError("the disk burned"));
  const auto ticket = leases_.Open(kName, AttachMode::kShared);
  EXPECT_THAT(ticket, FailsWith(kFailedPrecondition, reason::kLoadFailed));
  EXPECT_THAT(ticket, Says("the disk burned"));
}

TEST_F(LeaseTableTest, ATokenIsTradedForDescriptors) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  ASSERT_OK_AND_ASSIGN(const auto redeemed, leases_.Redeem(ticket.token, 42, 7));
  EXPECT_EQ(redeemed.lease, ticket.lease);
  EXPECT_EQ(redeemed.handle.fds.size(), 1u);
}

TEST_F(LeaseTableTest, ATokenIsGoodOnlyOnce) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  ASSERT_OK(leases_.Redeem(ticket.token, 42, 7));
  EXPECT_THAT(leases_.Redeem(ticket.token, 42, 7),
              FailsWith(kUnauthenticated, reason::kTokenInvalid));
}

TEST_F(LeaseTableTest, RefusesATokenItNeverGave) {
  Load();
  ASSERT_OK(leases_.Open(kName, AttachMode::kShared));
  EXPECT_THAT(leases_.Redeem(std::string(LeaseTable::kTokenLength, '0'), 42, 7),
              FailsWith(kUnauthenticated, reason::kTokenInvalid));
}

TEST_F(LeaseTableTest, TheTokenOfAnEndedLeaseIsWorthless) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  leases_.End(ticket.lease);
  EXPECT_THAT(leases_.Redeem(ticket.token, 42, 7),
              FailsWith(kUnauthenticated, reason::kTokenInvalid));
}

TEST_F(LeaseTableTest, ALeaseWhoseTokenWasNotShownIsReleased) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  EXPECT_OK(leases_.Release(ticket.lease));
  EXPECT_TRUE(leases_.Empty());
  EXPECT_THAT(leases_.Redeem(ticket.token, 42, 7),
              FailsWith(kUnauthenticated, reason::kTokenInvalid));
  EXPECT_OK(leases_.Release(ticket.lease)) << "again";
}

TEST_F(LeaseTableTest, ALeaseThatAConnectionHoldsIsNotReleased) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  ASSERT_OK(leases_.Redeem(ticket.token, 42, 7));
  EXPECT_THAT(leases_.Release(ticket.lease), FailsWith(kFailedPrecondition, reason::kLeased));
  EXPECT_EQ(LeasesOf(kName), 1U);
}

TEST_F(LeaseTableTest, AFreshTokenDoesNotExpire) {
  Load();
  ASSERT_OK(leases_.Open(kName, AttachMode::kShared));
  leases_.ExpireTokens();
  EXPECT_EQ(leases_.List().size(), 1u);
}

TEST_F(LeaseTableTest, ShowsWhoHoldsTheLeaseOnceItIsConnected) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kPrivate));
  EXPECT_FALSE(leases_.List().at(0).connected);
  ASSERT_OK(leases_.Redeem(ticket.token, 42, 7));
  const LeaseInfo info = leases_.List().at(0);
  EXPECT_TRUE(info.connected);
  EXPECT_EQ(info.pid, 42);
  EXPECT_EQ(info.uid, 7u);
  EXPECT_EQ(info.mode, AttachMode::kPrivate);
}

TEST_F(LeaseTableTest, EndingALeaseTwiceCountsOnce) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto first, leases_.Open(kName, AttachMode::kShared));
  ASSERT_OK(leases_.Open(kName, AttachMode::kShared));
  leases_.End(first.lease);
  leases_.End(first.lease);
  EXPECT_EQ(LeasesOf(kName), 1u);
}

TEST_F(LeaseTableTest, UnloadingALeasedCheckpointIsRefused) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  EXPECT_THAT(catalog_.Unload(kName, false), FailsWith(kFailedPrecondition, reason::kLeased));
  leases_.End(ticket.lease);
  EXPECT_OK(catalog_.Unload(kName, false));
}

TEST_F(LeaseTableTest, UnloadingByForceTellsTheBytesAndLeavesTheLeaseItsMemory) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  EXPECT_EQ(catalog_.Unload(kName, true).value(), kSmallSegment);
  EXPECT_EQ(leases_.Redeem(ticket.token, 42, 7).value().handle.fds.size(), 1u);
}

TEST_F(LeaseTableTest, UnloadingACheckpointThatIsLoadingIsRefused) {
  catalog_.Begin(kName, RuleRequest());
  EXPECT_THAT(catalog_.Unload(kName, true), FailsWith(kFailedPrecondition, reason::kNotActive));
}

TEST_F(LeaseTableTest, ALeaseOfAnUnloadedCheckpointDoesNotCountOnItsSuccessor) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto old, leases_.Open(kName, AttachMode::kShared));
  ASSERT_OK(catalog_.Unload(kName, true));
  Load();
  ASSERT_OK(leases_.Open(kName, AttachMode::kShared));
  leases_.End(old.lease);
  EXPECT_EQ(LeasesOf(kName), 1u);
}

TEST_F(LeaseTableTest, AnExclusiveLeaseOnSealedMemoryNeedsACopy) {
  Load(AttachMode::kShared);
  EXPECT_THAT(leases_.Open(kName, AttachMode::kExclusive),
              FailsWith(kFailedPrecondition, reason::kExclusiveNeedsCopy));
}

TEST_F(LeaseTableTest, AnExclusiveLeaseBesideAnotherOneIsRefused) {
  Load(AttachMode::kExclusive);
  ASSERT_OK(leases_.Open(kName, AttachMode::kShared));
  EXPECT_THAT(leases_.Open(kName, AttachMode::kExclusive),
              FailsWith(kFailedPrecondition, reason::kLeased));
}

TEST_F(LeaseTableTest, ALeaseBesideAnExclusiveOneIsRefused) {
  Load(AttachMode::kExclusive);
  ASSERT_OK(leases_.Open(kName, AttachMode::kExclusive));
  EXPECT_THAT(leases_.Open(kName, AttachMode::kShared),
              FailsWith(kFailedPrecondition, reason::kLeased));
}

TEST_F(LeaseTableTest, AnExclusiveLeaseThatEndsUnusedLeavesTheShardToOthers) {
  Load(AttachMode::kExclusive);
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kExclusive));
  leases_.End(ticket.lease);
  EXPECT_OK(leases_.Open(kName, AttachMode::kShared));
}

TEST_F(LeaseTableTest, HandingExclusiveMemoryOverTakesTheCheckpoint) {
  Load(AttachMode::kExclusive);
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kExclusive));
  ASSERT_OK_AND_ASSIGN(const auto redeemed, leases_.Redeem(ticket.token, 42, 7));
  EXPECT_TRUE(redeemed.handle.writable);
  leases_.HandedOver(redeemed.lease);
  EXPECT_EQ(catalog_.Get(kName).value().state, CheckpointState::kTaken);
  EXPECT_EQ(memory_->Usage().used, 0u);
}

TEST_F(LeaseTableTest, ATakenCheckpointIsNeverHandedOutAgain) {
  Load(AttachMode::kExclusive);
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kExclusive));
  ASSERT_OK_AND_ASSIGN(const auto redeemed, leases_.Redeem(ticket.token, 42, 7));
  leases_.HandedOver(redeemed.lease);
  leases_.End(redeemed.lease);
  EXPECT_THAT(leases_.Open(kName, AttachMode::kShared),
              FailsWith(kFailedPrecondition, reason::kTaken));
}

TEST_F(LeaseTableTest, TheTableOfATakenCheckpointStaysReadable) {
  Load(AttachMode::kExclusive);
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kExclusive));
  ASSERT_OK_AND_ASSIGN(const auto redeemed, leases_.Redeem(ticket.token, 42, 7));
  leases_.HandedOver(redeemed.lease);
  EXPECT_EQ(catalog_.leases().Table(kName).value()->plan.tensors.size(), 1u);
}

TEST_F(LeaseTableTest, HandingReadersTheirDescriptorsTakesNothing) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  leases_.HandedOver(ticket.lease);
  EXPECT_EQ(catalog_.Get(kName).value().state, CheckpointState::kActive);
}

TEST_F(LeaseTableTest, WaitingForTheLastLeaseEndsWithIt) {
  Load();
  ASSERT_OK_AND_ASSIGN(const auto ticket, leases_.Open(kName, AttachMode::kShared));
  auto left = std::async(std::launch::async, [&] { return leases_.WaitUntilEmpty(Soon()); });
  leases_.End(ticket.lease);
  EXPECT_EQ(left.get(), 0u);
}

TEST_F(LeaseTableTest, WaitingForTheLastLeaseTellsHowManyAreLeftAtTheDeadline) {
  Load();
  ASSERT_OK(leases_.Open(kName, AttachMode::kShared));
  EXPECT_EQ(leases_.WaitUntilEmpty(Clock::now()), 1u);
}

}  // namespace
}  // namespace ckptd

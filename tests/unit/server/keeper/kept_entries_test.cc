#include "server/keeper/kept_entries.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr char kOwner[] = "rank-0";

std::vector<UniqueFd> Descriptors(size_t count) {
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < count; ++i) fds.push_back(NewMemfd("test"));
  return fds;
}

class KeptEntriesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(entries_.Begin(kOwner, false)); }
  absl::Status Put(const std::string& name, size_t count, uint32_t to_come = 0) {
    return entries_.Put(kOwner, name, Descriptors(count), to_come);
  }
  size_t Held(const std::string& name) {
    const auto& all = entries_.Of(kOwner);
    return all.count(name) == 0 ? 0 : all.at(name).size();
  }

  KeptEntries entries_;
};

TEST_F(KeptEntriesTest, AnEntryCountsOnceAllItsDescriptorsHaveCome) {
  ASSERT_OK(Put("a", 2, 3));
  EXPECT_EQ(Held("a"), 0U);
  ASSERT_OK(Put("a", 3, 0));
  EXPECT_EQ(Held("a"), 5U);
}

TEST_F(KeptEntriesTest, AnEntryThatIsNotCompleteGoesWithItsConnection) {
  ASSERT_OK(Put("a", 1));
  ASSERT_OK(Put("a", 2, 3));
  entries_.End(kOwner);
  EXPECT_EQ(Held("a"), 1U);  // the earlier one
  ASSERT_OK(entries_.Begin(kOwner, false));
  EXPECT_THAT(Put("a", 2, 3), IsOk());
}

TEST_F(KeptEntriesTest, AnEntryReplacesTheEarlierOneOfItsName) {
  ASSERT_OK(Put("a", 1));
  ASSERT_OK(Put("a", 2));
  EXPECT_EQ(Held("a"), 2U);
}

TEST_F(KeptEntriesTest, AnEntryWhoseRestDoesNotComeIsDroppedForTheNextOne) {
  ASSERT_OK(Put("a", 1, 2));
  EXPECT_OK(Put("b", 2, 0));
  EXPECT_EQ(Held("a"), 0U);
  EXPECT_EQ(Held("b"), 2U);
}

TEST_F(KeptEntriesTest, DescriptorsThatDoNotFollowAreRefusedAndTheEntryIsDropped) {
  ASSERT_OK(Put("a", 1, 2));
  EXPECT_THAT(Put("a", 1, 0), FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  EXPECT_EQ(Held("a"), 0U);
}

TEST_F(KeptEntriesTest, OwnersDoNotSeeEachOther) {
  ASSERT_OK(Put("a", 1));
  ASSERT_OK(entries_.Begin("rank-1", false));
  EXPECT_TRUE(entries_.Of("rank-1").empty());
  entries_.Remove("rank-1", "a");
  EXPECT_EQ(Held("a"), 1U);
}

TEST_F(KeptEntriesTest, OneOwnerHasOneConnection) {
  EXPECT_THAT(entries_.Begin(kOwner, false),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
  entries_.End(kOwner);
  EXPECT_OK(entries_.Begin(kOwner, false));
}

TEST_F(KeptEntriesTest, ForgettingLeavesNothing) {
  ASSERT_OK(Put("a", 1));
  entries_.End(kOwner);
  ASSERT_OK(entries_.Begin(kOwner, true));
  EXPECT_EQ(Held("a"), 0U);
}

TEST_F(KeptEntriesTest, OwnersWithoutEntriesAreForgotten) {
  entries_.End(kOwner);
  EXPECT_EQ(entries_.owners(), 0U);
}

TEST_F(KeptEntriesTest, NamesAreBoundedAndPrintable) {
  EXPECT_OK(Put(std::string(KeptEntries::kMaxNameBytes, 'x'), 1));
  for (const std::string& name : {std::string(), std::string(KeptEntries::kMaxNameBytes + 1, 'x'),
                                  std::string("a b"), std::string("a\n"), std::string("\xff")}) {
    EXPECT_FALSE(Put(name, 1).ok()) << name;
  }
  EXPECT_FALSE(Put("none", 0).ok());
  EXPECT_FALSE(Put("many", 1, KeptEntries::kMaxDescriptors + 1).ok());
}

}  // namespace
}  // namespace ckptd

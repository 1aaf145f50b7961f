#include "server/protocol/access_policy.h"

#include <gtest/gtest.h>

#include <tuple>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uid_t kOwn = 1000;
constexpr gid_t kGroup = 2000;
constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

const Caller kMember{1001, 1001, {5, kGroup}};

AccessPolicy Policy(std::optional<gid_t> group, std::set<uid_t> users = {}) {
  return {kOwn, group, std::move(users)};
}

TEST(AccessPolicy, TrustsItsOwnUserAndRootWhateverTheirGroups) {
  for (const AccessPolicy& policy : {Policy({}), Policy(kGroup), Policy(kGroup, {1001})}) {
    EXPECT_EQ(policy.StandingOf({kOwn, 7}), Standing::kOwner);
    EXPECT_EQ(policy.StandingOf({0, 7}), Standing::kOwner);
  }
}

TEST(AccessPolicy, WithoutAGroupEverybodyElseIsAStranger) {
  EXPECT_EQ(Policy({}).StandingOf(kMember), Standing::kStranger);
  // Not the daemon's own group either, nor root's.
  EXPECT_EQ(Policy({}).StandingOf({1001, kOwn, {0}}), Standing::kStranger);
}

TEST(AccessPolicy, MembersOfTheGroupAreGuests) {
  EXPECT_EQ(Policy(kGroup).StandingOf(kMember), Standing::kGuest);
  EXPECT_EQ(Policy(kGroup).StandingOf({1001, kGroup}), Standing::kGuest);
  EXPECT_EQ(Policy(kGroup).StandingOf({1001, 1001, {5, 2001}}), Standing::kStranger);
}

TEST(AccessPolicy, NamedUsersMustBeMembersToo) {
  EXPECT_EQ(Policy(kGroup, {1001}).StandingOf(kMember), Standing::kGuest);
  EXPECT_EQ(Policy(kGroup, {1002}).StandingOf(kMember), Standing::kStranger);
  EXPECT_EQ(Policy(kGroup, {1001}).StandingOf({1001, 1001}), Standing::kStranger);
}

TEST(AccessPolicy, OnlyOwnersAdministerAndUseWhatIsOthers) {
  const std::vector<std::tuple<Action, bool, bool>> expected = {  // of owners, of guests
      {Action::kLoad, true, true},
      {Action::kUseOwn, true, true},
      {Action::kUseOthers, true, false},
      {Action::kAdminister, true, false}};
  for (const auto& [action, owners, guests] : expected) {
    EXPECT_EQ(AccessPolicy::Allows(Standing::kOwner, action), owners);
    EXPECT_EQ(AccessPolicy::Allows(Standing::kGuest, action), guests);
    EXPECT_FALSE(AccessPolicy::Allows(Standing::kStranger, action));
  }
}

TEST(CheckUse, AGuestUsesWhatWasLoadedForItsUser) {
  const Caller other_groups{1001, 8, {}};
  EXPECT_OK(CheckUse(kMember, 1001, "acquiring a"));
  EXPECT_OK(CheckUse(other_groups, 1001, "acquiring a"));
  for (const std::optional<uid_t> other : {std::optional<uid_t>(), std::optional<uid_t>(1002)}) {
    const absl::Status status = CheckUse(kMember, other, "acquiring a");
    EXPECT_THAT(status, FailsWith(kDenied, reason::kCallerNotAllowed));
    EXPECT_THAT(status, Says("acquiring a: it was loaded for another user than uid 1001"));
  }
}

TEST(CheckUse, TrustedClientsUseAll) {
  EXPECT_OK(CheckUse(std::nullopt, std::nullopt, "acquiring a"));
  EXPECT_OK(CheckUse(std::nullopt, 1001, "acquiring a"));
}

TEST(NotAllowed, TellsAGuestWhoAdministersAndAStrangerHowToComeIn) {
  EXPECT_THAT(NotAllowed(Standing::kGuest, Action::kAdminister), Says("its own user and root"));
  EXPECT_THAT(NotAllowed(Standing::kStranger, Action::kAdminister), Says("--allow-gid"));
  EXPECT_THAT(NotAllowed(Standing::kStranger, Action::kLoad),
              FailsWith(kDenied, reason::kCallerNotAllowed));
}

}  // namespace
}  // namespace ckptd

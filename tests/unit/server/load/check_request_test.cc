// Requests that no rank could serve are refused before anything else happens.
#include "server/load/check_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

TEST(CheckRequest, AcceptsRulesForThisGroup) {
  EXPECT_OK(CheckRequest(RuleRequest("fsdp:2"), 1, 2));
}

TEST(CheckRequest, RefusesARelativeSource) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:2", "models/m"), 1, 2),
              FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(CheckRequest, RefusesAPathThatNoFileCanHave) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:2", "/" + std::string(5000, 'x')), 1, 2),
              FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(CheckRequest, RefusesRulesForAnotherGroupSize) {
  const absl::Status status = CheckRequest(RuleRequest("fsdp:3"), 1, 2);
  EXPECT_THAT(status, FailsWith(kInvalidArgument, reason::kWrongWorldSize));
  EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("set WORLD_SIZE and RANK"));
}

TEST(CheckRequest, RefusesAMeshOfRanksThatTheLayoutHasNot) {
  LoadRequest request = RankRequest(1, 2);
  RankLayout layout = *std::get<std::shared_ptr<const RankLayout>>(request.layout);
  layout.meshes = {{{2}, {}, {0, 1}}};
  request.layout = std::make_shared<const RankLayout>(layout);
  EXPECT_OK(CheckRequest(request, 1, 2));
  layout.meshes.push_back({{2}, {}, {1, 4'000'000'000}});
  request.layout = std::make_shared<const RankLayout>(layout);
  const absl::Status status = CheckRequest(request, 1, 2);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
  EXPECT_THAT(status, Says("a mesh has rank 4000000000, the layout is for 2 ranks"));
}

TEST(CheckRequest, TellsTrainersThatAreTooManyHowManyDaemonsTheyNeed) {
  const absl::Status status = CheckRequest(RankRequest(1, 3), 1, 2);
  EXPECT_THAT(status, FailsWith(kInvalidArgument, reason::kWrongWorldSize));
  EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("ckptd launch --nproc 3"));
}

TEST(CheckRequest, RefusesRulesThatDoNotParse) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp"), 1, 2),
              FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(CheckRequest, RefusesTheStatementOfAnotherRank) {
  const absl::Status status = CheckRequest(RankRequest(0, 2), 1, 2);
  EXPECT_THAT(status, FailsWith(kInvalidArgument, reason::kWrongRank));
  EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("CKPTD_ADDRESS, write {rank} in it"));
}

TEST(CheckRequest, RefusesACallerThatIsNoRankOfTheGroup) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:2"), 2, 2),
              FailsWith(kInvalidArgument, reason::kWrongRank));
}

TEST(CheckRequest, MemoryThatEndsWithTheDaemonCannotBeTakenOver) {
  LoadRequest request = RuleRequest("fsdp:2");
  request.intended = AttachMode::kExclusive;
  request.kind = HandleKind::kVmmFd;
  EXPECT_OK(CheckRequest(request, 0, 2));
  request.kind = HandleKind::kCudaIpc;
  EXPECT_THAT(CheckRequest(request, 0, 2),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
  request.intended = AttachMode::kPrivate;
  EXPECT_OK(CheckRequest(request, 0, 2));
}

}  // namespace
}  // namespace ckptd

#include "common/source/formats/deepspeed/partitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd::deepspeed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Parameters that the tests of all stages share: 13 elements in all, over four ranks.
const std::vector<Parameter> kThree = {{"a", {3}}, {"b", {2, 2}}, {"c", {6}}};

MATCHER(IsInvalid, "is no ZeRO checkpoint") {
  return StatusOf(arg).code() == absl::StatusCode::kDataLoss &&
         ReasonOf(StatusOf(arg)) == reason::kSourceInvalid;
}

TEST(ZeroGroup, IsCutWithoutRegardToParameters) {
  ASSERT_OK_AND_ASSIGN(const auto runs, RunsOfGroup(kThree, {4, 4, 4, 1}));
  EXPECT_THAT(runs, ElementsAre(ElementsAre(PartRun{0, 0, 3}),
                                ElementsAre(PartRun{0, 3, 1}, PartRun{1, 0, 3}),
                                ElementsAre(PartRun{1, 3, 1}, PartRun{2, 0, 4}, PartRun{3, 0, 1})));
}

TEST(ZeroGroup, MayEndInPadding) {
  EXPECT_OK(RunsOfGroup(kThree, {4, 4, 4, 4}));
  EXPECT_OK(RunsOfGroup(kThree, {13, 0, 0, 0}));
  EXPECT_THAT(RunsOfGroup(kThree, {4, 4, 4, 5}), IsInvalid());
}

TEST(ZeroGroup, MustHoldAllOfItsParameters) {
  const auto runs = RunsOfGroup(kThree, {4, 4, 4});
  EXPECT_THAT(runs, IsInvalid());
  EXPECT_THAT(runs, Says("the last 1 of 6 elements of \"c\""));
}

TEST(ZeroGroup, HasNoRunOfAParameterWithoutElements) {
  ASSERT_OK_AND_ASSIGN(const auto runs, RunsOfGroup({{"none", {0, 3}}, {"a", {}}}, {1}));
  EXPECT_THAT(runs, ElementsAre(IsEmpty(), ElementsAre(PartRun{0, 0, 1})));
}

TEST(ZeroGroup, MayHavePaddingBehindItsParameters) {
  ASSERT_OK_AND_ASSIGN(const auto runs, RunsOfGroup({{"a", {3}}, {"b", {2}}}, {4, 4}, {2, 1}));
  EXPECT_THAT(runs, ElementsAre(ElementsAre(PartRun{0, 0, 3}), ElementsAre(PartRun{1, 1, 2})));
  EXPECT_THAT(RunsOfGroup({{"a", {3}}}, {4}, {2}), Says("end in the padding behind \"a\""));
  EXPECT_THAT(RunsOfGroup({{"a", {3}}}, {4}, {1, 0}), Says("1 parameters, and paddings of 2"));
}

TEST(ZeroStage3, CutsEachParameterForItself) {
  ASSERT_OK_AND_ASSIGN(const auto runs, RunsOfStage3(kThree, 4, 4));
  EXPECT_THAT(runs,
              ElementsAre(ElementsAre(PartRun{0, 0, 1}, PartRun{1, 0, 1}, PartRun{2, 0, 1}),
                          ElementsAre(PartRun{0, 1, 1}, PartRun{1, 1, 1}, PartRun{2, 1, 1}, PartRun{3, 1, 1}),
                          ElementsAre(PartRun{0, 2, 2}, PartRun{1, 2, 2}, PartRun{2, 2, 2})));
}

TEST(ZeroStage3, TakesAllOfAPart) {
  EXPECT_THAT(RunsOfStage3(kThree, 3, 4), IsInvalid());
  EXPECT_THAT(RunsOfStage3(kThree, 5, 4), Says("the parameters take 4"));
}

}  // namespace
}  // namespace ckptd::deepspeed

#include "common/layout/unexpected.h"

#include "common/base/reasons.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Unexpected : public ::testing::Test {
 protected:
  Unexpected() {
    for (const char* name : {"a", "b", "c"}) source_.Add(name, {2});
    source_.index().aliases["b.tied"] = "b";
    first_ = AskFor({"a"}, Sharding{}, MeshOf({1}));
    second_ = AskFor({"c"}, Sharding{}, MeshOf({1}));
  }
  std::vector<std::string> Names(std::vector<const RankLayout*> layouts) {
    return UnexpectedTensors(source_.index(), layouts);
  }
  absl::Status Check(std::vector<const RankLayout*> layouts) {
    return CheckNothingUnexpected(source_.index(), layouts);
  }
  FakeSource source_;
  RankLayout first_;
  RankLayout second_;
};

TEST_F(Unexpected, IsWhatOneRankDoesNotName) { EXPECT_THAT(Names({&first_}), ElementsAre("b", "c")); }

TEST_F(Unexpected, IsWhatNoRankOfAGroupNames) {
  EXPECT_THAT(Names({&first_, &second_}), ElementsAre("b"));
}

TEST_F(Unexpected, IsNotWhatAnAliasOfTheSourceNames) {
  first_.targets.push_back(first_.targets[0]);
  first_.targets[1].name = "b.tied";
  EXPECT_THAT(Names({&first_, &second_}), IsEmpty());
}

TEST_F(Unexpected, IsNotWhatATiedNameOfTheTrainerNames) {
  first_.targets[0].aliases = {"b"};
  EXPECT_THAT(Names({&first_, &second_}), IsEmpty());
}

TEST_F(Unexpected, PassesWhenNoRankRefusesIt) { EXPECT_OK(Check({&first_, &second_})); }

TEST_F(Unexpected, IsRefusedByNameWhenARankSaysSo) {
  second_.refuse_unexpected = true;
  const absl::Status status = Check({&first_, &second_});
  EXPECT_THAT(status,
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kUnexpectedTensors));
  EXPECT_THAT(status, Says("1 tensor(s) that no rank asks for: 'b'"));
}

}  // namespace
}  // namespace ckptd

#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "common/layout/layout.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

std::string MeshOf(const std::string& number) {
  return R"j({"mesh": {"shape": [)j" + number +
         R"j(]}, "rules": [{"match": "a\"-1.5e9\"", "placements": ["shard(0)"]}]})j";
}

TEST(LayoutNumbers, RefusesEverythingThatIsNoSmallWholeNumberBeforeItIsParsed) {
  for (const char* number : {"-1", "2.0", "1e3", "0.12345678901e-2147483639", "12345678901",
                             "99999999999999999999999999", "-", "1E+400"}) {
    EXPECT_THAT(LayoutRules::Parse(MeshOf(number)),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid))
        << number;
  }
}

TEST(LayoutNumbers, LeavesNumbersInsideStringsAlone) { EXPECT_OK(LayoutRules::Parse(MeshOf("2"))); }

}  // namespace
}  // namespace ckptd

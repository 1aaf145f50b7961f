#include "common/source/weight_map/located_files.h"

#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

TEST(LocatedFiles, AreNotMoreThanTheLimit) {
  EXPECT_OK(CheckFileCount("/m", kMaxSourceFiles));
  const absl::Status status = CheckFileCount("/m", kMaxSourceFiles + 1);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
  EXPECT_EQ(FactsOf(status)["file"], "/m");
}

}  // namespace
}  // namespace ckptd

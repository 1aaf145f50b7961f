#include "common/base/posix.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "common/base/status.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

TEST(OpenForReading, SaysWhoMayNotReadTheFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be several users";
  const TempFolder folder;  // only its owner may enter it
  const std::string path = folder.Write("m.safetensors", "x");
  ASSERT_EQ(::seteuid(65534), 0);
  const absl::Status status = OpenForReading(path).status();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status, Says("Permission denied for uid 65534; let that user read it"));
  EXPECT_EQ(FactsOf(status).at("file"), path);
}

}  // namespace
}  // namespace ckptd

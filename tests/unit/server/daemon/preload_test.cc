#include "server/daemon/preload.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

Config Given() {
  Config config = DefaultConfig([](const std::string&) { return std::nullopt; });
  config.world_size = 4;
  config.load = "/models/m/";
  return config;
}

TEST(PreloadRequest, IsFsdpOverAllRanksUnlessALayoutIsGiven) {
  ASSERT_OK_AND_ASSIGN(const LoadRequest usual, PreloadRequest(Given(), false));
  EXPECT_EQ(usual.source, "/models/m");  // the form that clients use
  EXPECT_EQ(std::get<std::string>(usual.layout), "fsdp:4");
  EXPECT_EQ(usual.policy, DtypePolicy());
  Config config = Given();
  config.layout = "hsdp:2x2";
  EXPECT_EQ(std::get<std::string>(PreloadRequest(config, false)->layout), "hsdp:2x2");
}

TEST(PreloadRequest, CastsToWhatPyTorchOrAFileCallsADtype) {
  Config config = Given();
  for (const char* dtype : {"BF16", "bf16", "bfloat16"}) {
    config.dtype = dtype;
    EXPECT_EQ(PreloadRequest(config, false)->policy.cast_to, Dtype::kBF16) << dtype;
  }
}

TEST(PreloadRequest, IsForWhoeverTakesItOverWhereItIsInAGpu) {
  EXPECT_EQ(PreloadRequest(Given(), false)->intended, AttachMode::kShared);
  EXPECT_EQ(PreloadRequest(Given(), true)->intended, AttachMode::kExclusive);
  Config config = Given();
  config.load_mode = "shared";
  EXPECT_EQ(PreloadRequest(config, true)->intended, AttachMode::kShared);
  config.load_mode = "exclusive";
  EXPECT_EQ(PreloadRequest(config, false)->intended, AttachMode::kExclusive);
}

}  // namespace
}  // namespace ckptd

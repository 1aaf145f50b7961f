#include "server/node/trainer_key.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"

namespace ckptd {
namespace {

TEST(TrainerKey, IsAnHmacOfItsLabelUnderTheSecret) {
  EXPECT_EQ(absl::BytesToHexString(DeriveTrainerKey("0123456789abcdef0123456789abcdef")),
            "3b4d72f1183aa1bb5246d78b743b889c0f119d3b40d3051e16c871d60a7fb3fb");
}

TEST(TrainerKey, DiffersFromGroupToGroup) {
  EXPECT_NE(DeriveTrainerKey("one"), DeriveTrainerKey("another"));
}

}  // namespace
}  // namespace ckptd

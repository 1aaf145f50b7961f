#include "server/daemon/peer_auth.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr char kCertificate[] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
constexpr char kKey[] = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";

constexpr char kGroupKey[] = "9d0c1be75f3a4682d19b7ec0a35f8264";

class PeerAuth : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.tls_cert = File("cert.pem", std::string("Bag Attributes\n") + kCertificate);
    config_.tls_key = File("key.pem", kKey);
    config_.tls_ca = File("ca.pem", kCertificate);
  }
  std::string File(const std::string& name, const std::string& text) const {
    return folder_.Write(name, text);
  }

  absl::StatusOr<PeerSecurity> Read() const {
    return ReadPeerSecurity(config_, [this](const std::string& name) -> std::optional<std::string> {
      const auto at = environment_.find(name);
      return at == environment_.end() ? std::nullopt : std::optional(at->second);
    });
  }
  void ForgetCertificates() { config_.tls_cert = config_.tls_key = config_.tls_ca = ""; }

  const TempFolder folder_;
  Config config_;
  std::map<std::string, std::string> environment_;
};

TEST_F(PeerAuth, AGroupOfOneHasAKeyThatNobodyElseHas) {
  ForgetCertificates();
  ASSERT_OK_AND_ASSIGN(const PeerSecurity one, Read());
  ASSERT_OK_AND_ASSIGN(const PeerSecurity other, Read());
  EXPECT_TRUE(one.enabled());
  EXPECT_NE(one.authorities, other.authorities);
}

TEST_F(PeerAuth, ALargerGroupIsToldToBeGivenAKey) {
  ForgetCertificates();
  config_.world_size = 4;
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(Read(), Says("openssl rand -hex 32"));
}

TEST_F(PeerAuth, IsOffOnlyWhenAskedFor) {
  ForgetCertificates();
  config_.world_size = 4;
  config_.peer_auth = "none";
  ASSERT_OK_AND_ASSIGN(const PeerSecurity security, Read());
  EXPECT_FALSE(security.enabled());
}

TEST_F(PeerAuth, AKeyFromAFileAndFromTheEnvironmentIsTheSame) {
  ForgetCertificates();
  config_.world_size = 4;
  environment_[kGroupKeyVariable] = kGroupKey;
  ASSERT_OK_AND_ASSIGN(const PeerSecurity from_environment, Read());
  EXPECT_TRUE(from_environment.enabled());
  environment_.clear();
  config_.group_key_file = File("key", std::string(kGroupKey) + "\n");
  ASSERT_OK_AND_ASSIGN(const PeerSecurity from_file, Read());
  EXPECT_EQ(from_environment.authorities, from_file.authorities);
}

TEST_F(PeerAuth, TwoWaysAtOnceAreRefused) {
  environment_[kGroupKeyVariable] = kGroupKey;
  EXPECT_THAT(Read(), Says("not two of them"));
  ForgetCertificates();
  config_.peer_auth = "none";
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST_F(PeerAuth, ReadsTheThreeFiles) {
  config_.tls_name = "ckptd.job";
  ASSERT_OK_AND_ASSIGN(const PeerSecurity security, Read());
  EXPECT_TRUE(security.enabled());
  EXPECT_EQ(security.key, kKey);
  EXPECT_EQ(security.authorities, kCertificate);
  EXPECT_EQ(security.name, "ckptd.job");
}

TEST_F(PeerAuth, SettingsInPartAreRefused) {
  config_.tls_ca.clear();
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST_F(PeerAuth, AFileOfAnotherKindIsNamedWithItsSetting) {
  config_.tls_key = config_.tls_cert;
  EXPECT_THAT(Read(), Says("--tls-key"));
  EXPECT_THAT(Read(), Says("no PRIVATE KEY"));
}

TEST_F(PeerAuth, AFileThatIsNotThereIsNamedWithItsSetting) {
  config_.tls_ca = folder_ / "nothing.pem";
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(Read(), Says("nothing.pem"));
}

}  // namespace
}  // namespace ckptd

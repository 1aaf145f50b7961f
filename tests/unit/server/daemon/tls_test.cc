#include "server/daemon/tls.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr char kCertificate[] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
constexpr char kKey[] = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";

class Tls : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "tlsXXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    config_.tls_cert = File("cert.pem", std::string("Bag Attributes\n") + kCertificate);
    config_.tls_key = File("key.pem", kKey);
    config_.tls_ca = File("ca.pem", kCertificate);
  }
  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  std::string folder_;
  Config config_;
};

TEST_F(Tls, IsOffWithoutSettings) {
  ASSERT_OK_AND_ASSIGN(const PeerSecurity security, ReadPeerSecurity(Config()));
  EXPECT_FALSE(security.enabled());
}

TEST_F(Tls, ReadsTheThreeFiles) {
  config_.tls_name = "ckptd.job";
  ASSERT_OK_AND_ASSIGN(const PeerSecurity security, ReadPeerSecurity(config_));
  EXPECT_TRUE(security.enabled());
  EXPECT_EQ(security.key, kKey);
  EXPECT_EQ(security.authorities, kCertificate);
  EXPECT_EQ(security.name, "ckptd.job");
}

TEST_F(Tls, SettingsInPartAreRefused) {
  config_.tls_ca.clear();
  EXPECT_THAT(ReadPeerSecurity(config_),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST_F(Tls, AFileOfAnotherKindIsNamedWithItsSetting) {
  config_.tls_key = config_.tls_cert;
  EXPECT_THAT(ReadPeerSecurity(config_), Says("--tls-key"));
  EXPECT_THAT(ReadPeerSecurity(config_), Says("no PRIVATE KEY"));
}

TEST_F(Tls, AFileThatIsNotThereIsNamedWithItsSetting) {
  config_.tls_ca = folder_ + "/nothing.pem";
  EXPECT_THAT(ReadPeerSecurity(config_),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(ReadPeerSecurity(config_), Says("nothing.pem"));
}

}  // namespace
}  // namespace ckptd

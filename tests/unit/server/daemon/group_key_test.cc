#include "server/daemon/group_key.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <array>
#include <memory>
#include <string>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

// The public key of the only trusted authority.
std::string TrustedBy(const PeerSecurity& security) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> text(
      BIO_new_mem_buf(security.authorities.data(), static_cast<int>(security.authorities.size())),
      BIO_free_all);
  const std::unique_ptr<X509, decltype(&X509_free)> root(
      PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), X509_free);
  std::array<unsigned char, 32> key = {};
  size_t size = key.size();
  EXPECT_EQ(EVP_PKEY_get_raw_public_key(X509_get0_pubkey(root.get()), key.data(), &size), 1);
  return {key.begin(), key.end()};
}

TEST(GroupKey, IsTheSameAuthorityInEveryDaemonThatHasIt) {
  const std::string key = NewGroupKey();
  ASSERT_OK_AND_ASSIGN(const PeerSecurity one, SecurityOfGroupKey(key));
  ASSERT_OK_AND_ASSIGN(const PeerSecurity other, SecurityOfGroupKey(" " + key + "\r\n"));
  EXPECT_EQ(TrustedBy(one), TrustedBy(other));
  EXPECT_NE(one.certificate, other.certificate);
}

TEST(GroupKey, ThatDiffersInOneCharacterIsAnotherAuthority) {
  ASSERT_OK_AND_ASSIGN(const PeerSecurity one, SecurityOfGroupKey(std::string(32, 'k')));
  ASSERT_OK_AND_ASSIGN(const PeerSecurity other, SecurityOfGroupKey(std::string(31, 'k') + "l"));
  EXPECT_NE(TrustedBy(one), TrustedBy(other));
}

TEST(GroupKey, ThatCouldBeGuessedIsRefusedAndNotRepeated) {
  const std::string key(31, 'q');
  EXPECT_THAT(SecurityOfGroupKey(key), FailsWith(kInvalidArgument, reason::kConfigInvalid));
  EXPECT_EQ(MessageOf(SecurityOfGroupKey(key).status()).find("qq"), std::string::npos);
  EXPECT_THAT(SecurityOfGroupKey(std::string(40, ' ')), Says("0 characters"));
  EXPECT_THAT(SecurityOfGroupKey(std::string(5000, 'q')),
              FailsWith(kInvalidArgument, reason::kConfigInvalid));
}

TEST(GroupKey, IsNewEachTime) { EXPECT_NE(NewGroupKey(), NewGroupKey()); }

}  // namespace
}  // namespace ckptd

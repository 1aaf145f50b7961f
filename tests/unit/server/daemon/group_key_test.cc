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

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

Certificate CertificateIn(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> text(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all);
  return {PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), X509_free};
}

// The public key of the only trusted authority.
std::string TrustedBy(const PeerSecurity& security) {
  const Certificate root = CertificateIn(security.authorities);
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

TEST(GroupKey, ThatDiffersInOneDigitIsAnotherAuthority) {
  const std::string key = "9d0c1be75f3a4682d19b7ec0a35f8264";
  ASSERT_OK_AND_ASSIGN(const PeerSecurity one, SecurityOfGroupKey(key));
  ASSERT_OK_AND_ASSIGN(const PeerSecurity other, SecurityOfGroupKey(key.substr(0, 31) + "5"));
  EXPECT_NE(TrustedBy(one), TrustedBy(other));
}

TEST(GroupKey, ThatCouldBeGuessedIsRefusedAndNotRepeated) {
  const std::string half = "9d0c1be75f3a4682";
  for (const std::string& key : {
           std::string(),
           std::string(40, ' '),
           std::string(31, 'b'),
           half + "d19b7ec0a35f826",              // 31 digits
           std::string("correct horse battery staple, thirty years old"),
           std::string("correcthorsebatterystaplecorrect"),
           std::string(64, 'a'),                   // digits, and no generator's
           std::string("deadbeefcafebabedeadbeefcafebabf"),
           std::string("0123456789abcdef0123456789abcdef"),
           std::string("00112233445566778899aabbccddeeff"),
           std::string("20261130202611302026113020261130"),
           half + half + half.substr(0, 3),        // 64 bits, twice
           std::string(5000, '7'),
       }) {
    const absl::Status refused = SecurityOfGroupKey(key).status();
    EXPECT_THAT(refused, FailsWith(kInvalidArgument, reason::kConfigInvalid)) << key;
    EXPECT_THAT(refused, Says("make one with `openssl rand -hex 32`"));
    EXPECT_TRUE(key.empty() || MessageOf(refused).find(key) == std::string::npos) << "it is not repeated";
  }
}

TEST(GroupKey, OfAGeneratorIsTaken) {
  for (int i = 0; i < 100; ++i) EXPECT_OK(SecurityOfGroupKey(NewGroupKey()));
  EXPECT_OK(SecurityOfGroupKey("9D0C1BE75F3A4682D19B7EC0A35F8264")) << "in large letters";
}

// A host whose clock was never set is in 1970.
TEST(GroupKey, MakesCertificatesThatAreValidByAnyClock) {
  ASSERT_OK_AND_ASSIGN(const PeerSecurity security, SecurityOfGroupKey(NewGroupKey()));
  for (const std::string& pem : {security.certificate, security.authorities}) {
    const auto certificate = CertificateIn(pem);
    for (time_t when : {time_t{1}, time_t{4'102'444'800}}) {
      EXPECT_LT(X509_cmp_time(X509_get0_notBefore(certificate.get()), &when), 0) << when;
      EXPECT_GT(X509_cmp_time(X509_get0_notAfter(certificate.get()), &when), 0) << when;
    }
  }
}

TEST(GroupKey, IsNewEachTime) { EXPECT_NE(NewGroupKey(), NewGroupKey()); }

}  // namespace
}  // namespace ckptd

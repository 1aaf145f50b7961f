#include "server/daemon/group_key.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/domain.h"

namespace ckptd {
namespace {

constexpr char kAuthority[] = "ckptd group key";
constexpr char kName[] = "ckptd.group";
// Separates this use of the key from any other, and this version from later ones.
constexpr char kDomain[] = "ckptd group key 1\n";
// So few of the 16 values are seen in 32 random digits once in ten million keys.
constexpr size_t kMinDistinct = 8;
// Certificates are another form of the key. They end when the key is changed, and must not depend
// on a host's clock, which begins in 1970 where its battery is empty.
constexpr char kFrom[] = "19500101000000Z";
constexpr char kUntil[] = "99991231235959Z";

template <auto free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using KeyPair = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using Text = std::unique_ptr<BIO, Freed<BIO_free_all>>;

// The certificate authority that everybody with the key can act as.
KeyPair AuthorityOf(absl::string_view key) {
  const std::string seeded = kDomain + std::string(key);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> seed = {};
  SHA256(reinterpret_cast<const unsigned char*>(seeded.data()), seeded.size(), seed.data());
  return KeyPair(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
}

bool AddExtension(X509* certificate, int kind, const char* value) {
  const Extension extension(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// The owner of a certificate, or its issuer.
struct Subject {
  EVP_PKEY* pair;
  const char* name;
  const char* constraints;
};

// A certificate for `subject`, signed by `authority`. Null if OpenSSL fails.
Certificate Issue(const Subject& subject, const Subject& authority) {
  Certificate made(X509_new());
  X509* const x509 = made.get();
  const auto named = [](X509_NAME* name, const char* value) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(value);
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, bytes, -1, -1, 0) == 1;
  };
  const bool filled =
      x509 != nullptr && X509_set_version(x509, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set(X509_get_serialNumber(x509), 1) == 1 &&
      ASN1_TIME_set_string(X509_getm_notBefore(x509), kFrom) == 1 &&
      ASN1_TIME_set_string(X509_getm_notAfter(x509), kUntil) == 1 &&
      named(X509_get_subject_name(x509), subject.name) &&
      named(X509_get_issuer_name(x509), authority.name) &&
      X509_set_pubkey(x509, subject.pair) == 1 &&
      AddExtension(x509, NID_basic_constraints, subject.constraints) &&
      AddExtension(x509, NID_subject_alt_name, "DNS:ckptd.group") &&
      X509_sign(x509, authority.pair, nullptr) > 0;
  return filled ? std::move(made) : nullptr;
}

// The PEM text that `write` writes. Empty if OpenSSL fails.
template <typename Write>
std::string Pem(const Write& write) {
  const Text text(BIO_new(BIO_s_mem()));
  if (text == nullptr || write(text.get()) != 1) return {};
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return {data, static_cast<size_t>(size)};
}

std::string Pem(X509* certificate) {
  return Pem([certificate](BIO* text) { return PEM_write_bio_X509(text, certificate); });
}

// Empty if OpenSSL fails.
PeerSecurity SecurityOf(EVP_PKEY* authority_pair) {
  const KeyPair pair(EVP_EC_gen("P-256"));
  if (authority_pair == nullptr || pair == nullptr) return {};
  const Subject authority = {authority_pair, kAuthority, "critical,CA:TRUE"};
  const Certificate root = Issue(authority, authority);
  const Certificate own = Issue({pair.get(), kName, "critical,CA:FALSE"}, authority);
  if (root == nullptr || own == nullptr) return {};
  PeerSecurity security;
  security.certificate = Pem(own.get());
  security.key = Pem([&pair](BIO* text) {
    return PEM_write_bio_PrivateKey(text, pair.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  security.authorities = Pem(root.get());
  security.name = kName;
  return security;
}

// 0 to 15. The digits were checked.
unsigned ValueOf(char digit) { return digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10; }

// Whether digits of a generator may look like this. Of a million random keys none is refused.
bool LooksRandom(absl::string_view digits) {
  std::bitset<16> values;
  std::bitset<16> steps;  // few where digits count up, or come in pairs
  for (size_t i = 0; i < digits.size(); ++i) {
    values.set(ValueOf(digits[i]));
    if (i > 0) steps.set((ValueOf(digits[i]) - ValueOf(digits[i - 1])) % 16);
  }
  if (values.count() < kMinDistinct || steps.count() < kMinDistinct) return false;
  for (size_t period = 1; period <= digits.size() / 2; ++period) {
    if (digits.substr(period) == digits.substr(0, digits.size() - period)) return false;
  }
  return true;
}

// Empty: as hard to guess as its length says. A text that people make up is not: with a certificate,
// which a daemon shows to anybody who connects, guesses are tested elsewhere, billions a second.
std::string WhyWeak(absl::string_view key) {
  const bool hex = std::all_of(key.begin(), key.end(), absl::ascii_isxdigit);
  if (hex && key.size() >= kMinGroupKeyDigits && key.size() <= kMaxGroupKeyBytes) {
    return LooksRandom(key) ? "" : "its digits follow a pattern";
  }
  return fmt::format("it has {} characters{}, and must have {} or more hexadecimal digits of a random "
                     "generator",
                     key.size(), hex ? "" : ", not all of them hexadecimal digits", kMinGroupKeyDigits);
}

}  // namespace

std::string NewGroupKey() { return RandomHex(32); }

absl::StatusOr<PeerSecurity> SecurityOfGroupKey(const std::string& key) {
  const absl::string_view bare = absl::StripAsciiWhitespace(key);
  if (const std::string why = WhyWeak(bare); !why.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("using the group key: {}, so it could be guessed from a certificate that "
                                 "it made; make one with `openssl rand -hex 32`",
                                 why));
  }
  PeerSecurity security = SecurityOf(AuthorityOf(bare).get());
  if (!security.key.empty() && !security.certificate.empty() && !security.authorities.empty()) {
    return security;
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   "making a certificate of the group key: this system's OpenSSL cannot make "
                   "Ed25519 keys; give every daemon --tls-cert, --tls-key and --tls-ca instead");
}

}  // namespace ckptd

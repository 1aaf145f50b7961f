#include "server/node/trainer_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <array>
#include <cstdlib>
#include <string>

namespace ckptd {
namespace {

// Separates this use of the secret from any other.
constexpr std::string_view kLabel = "ckptd trainers 1";

}  // namespace

std::string DeriveTrainerKey(std::string_view group_secret, std::optional<uid_t> guest) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> key = {};
  std::string of(kLabel);
  if (guest.has_value()) of += " of uid " + std::to_string(*guest);
  const auto* const label = reinterpret_cast<const unsigned char*>(of.data());
  if (HMAC(EVP_sha256(), group_secret.data(), static_cast<int>(group_secret.size()), label,
           of.size(), key.data(), nullptr) == nullptr) {
    std::abort();  // out of memory
  }
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

}  // namespace ckptd

#include "server/node/trainer_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <array>
#include <cstdlib>

namespace ckptd {
namespace {

// Separates this use of the secret from any other.
constexpr std::string_view kLabel = "ckptd trainers 1";

}  // namespace

std::string DeriveTrainerKey(std::string_view group_secret) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> key = {};
  const auto* const label = reinterpret_cast<const unsigned char*>(kLabel.data());
  if (HMAC(EVP_sha256(), group_secret.data(), static_cast<int>(group_secret.size()), label,
           kLabel.size(), key.data(), nullptr) == nullptr) {
    std::abort();  // out of memory
  }
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}

}  // namespace ckptd

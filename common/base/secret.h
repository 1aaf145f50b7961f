// Compares secrets.
#ifndef CKPTD_COMMON_BASE_SECRET_H_
#define CKPTD_COMMON_BASE_SECRET_H_

#include <cstddef>
#include <string_view>

namespace ckptd {

// The time does not depend on how much of the secret is right. An empty secret is never right.
inline bool SameSecret(std::string_view ours, std::string_view theirs) {
  if (ours.empty() || ours.size() != theirs.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    difference = static_cast<unsigned char>(difference | (ours[i] ^ theirs[i]));
  }
  return difference == 0;
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_SECRET_H_

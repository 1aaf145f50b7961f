// A client of another user, as the kernel knows it. Plain values.
#ifndef CKPTD_COMMON_BASE_CALLER_H_
#define CKPTD_COMMON_BASE_CALLER_H_

#include <sys/types.h>

#include <compare>
#include <optional>
#include <vector>

namespace ckptd {

struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups = {};  // supplementary ones, ascending
  auto operator<=>(const Caller&) const = default;
};

// Processes of one user count as one: they may read each other's memory. Unset: a client whom the
// daemon trusts as itself.
inline std::optional<uid_t> UserOf(const std::optional<Caller>& guest) {
  return guest.has_value() ? std::optional<uid_t>(guest->uid) : std::nullopt;
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_CALLER_H_

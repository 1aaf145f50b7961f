// Who may do what with a daemon: the one place that decides it. Pure; the RPC layer asks.
#ifndef CKPTD_SERVER_PROTOCOL_ACCESS_POLICY_H_
#define CKPTD_SERVER_PROTOCOL_ACCESS_POLICY_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/caller.h"

namespace ckptd {

enum class Standing : uint8_t {
  kOwner,     // the daemon's own user, or root: trusted as the daemon itself
  kGuest,     // another user whom the settings let in
  kStranger,  // everybody else
};

enum class Action : uint8_t {
  kLoad,         // inspect, plan and load what the caller could read itself
  kUseOwn,       // see, attach to and verify what was loaded for the same user
  kUseOthers,    // the same with what was loaded for another user
  kAdminister,   // the admin socket: unload, cancel, pin, drain, trim, leases, settings
};

// Plain values. Without a group there are no guests.
struct AccessPolicy {
  Standing StandingOf(const Caller& caller) const;
  static bool Allows(Standing standing, Action action);

  uid_t own = 0;                        // the daemon's
  std::optional<gid_t> group = {};      // its members are guests
  std::set<uid_t> users = {};           // of them, these alone; empty: all
};

// OK if a client may use what was loaded for `loaded_for`. Unset: trusted clients. Errors:
// PermissionDenied CALLER_NOT_ALLOWED. `doing` is the beginning of the sentence.
absl::Status CheckUse(const std::optional<Caller>& guest, const std::optional<uid_t>& loaded_for,
                      std::string_view doing);

// The answer to who may not do `action` at all. PermissionDenied CALLER_NOT_ALLOWED.
absl::Status NotAllowed(Standing standing, Action action);

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_ACCESS_POLICY_H_

#include "server/protocol/access_policy.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Denied(std::string_view sentence) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kCallerNotAllowed, sentence);
}

}  // namespace

Standing AccessPolicy::StandingOf(const Caller& caller) const {
  if (caller.uid == own || caller.uid == 0) return Standing::kOwner;
  if (!group.has_value()) return Standing::kStranger;
  const bool member = caller.gid == *group ||
                      std::count(caller.groups.begin(), caller.groups.end(), *group) > 0;
  const bool named = users.empty() || users.count(caller.uid) > 0;
  return member && named ? Standing::kGuest : Standing::kStranger;
}

bool AccessPolicy::Allows(Standing standing, Action action) {
  switch (standing) {
    case Standing::kOwner: return true;
    case Standing::kGuest: return action == Action::kLoad || action == Action::kUseOwn;
    case Standing::kStranger: return false;
  }
  return false;
}

absl::Status CheckUse(const std::optional<Caller>& guest, const std::optional<uid_t>& loaded_for,
                      std::string_view doing) {
  const Standing standing = guest.has_value() ? Standing::kGuest : Standing::kOwner;
  const bool own = UserOf(guest) == loaded_for;
  const Action action = own ? Action::kUseOwn : Action::kUseOthers;
  if (AccessPolicy::Allows(standing, action)) return absl::OkStatus();
  return Denied(fmt::format("{}: it was loaded for another user than uid {}; load its source as "
                            "this user, who then attaches to the same memory where it may",
                            doing, guest->uid));
}

absl::Status NotAllowed(Standing standing, Action action) {
  if (standing == Standing::kGuest && action == Action::kAdminister) {
    return Denied("administering this daemon: that is for its own user and root; run ckptctl as one "
                  "of them, or in the daemon's container");
  }
  return Denied("calling this daemon: it does not serve this user; run as the daemon's user, or have "
                "it started with --allow-gid for a group of this one (and --allow-uid, if that "
                "names users)");
}

}  // namespace ckptd

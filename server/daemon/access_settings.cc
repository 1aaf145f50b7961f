#include "server/daemon/access_settings.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr size_t kRecordBytes = 64 << 10;  // of one user or group; groups list their members

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::optional<uint32_t> NumberIn(const std::string& text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  // The kernel takes the last number for "none".
  return whole && number != UINT32_MAX ? std::optional(number) : std::nullopt;
}

absl::StatusOr<uid_t> UserNamed(const std::string& name) {
  if (const auto number = NumberIn(name); number.has_value()) return *number;
  std::vector<char> room(kRecordBytes);
  passwd record = {};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &record, room.data(), room.size(), &found);
  if (found != nullptr) return found->pw_uid;
  return Invalid(fmt::format("checking --allow-uid {}: this system has no such user; check the name, "
                             "or give its number",
                             name));
}

absl::StatusOr<gid_t> GroupNamed(const std::string& name) {
  if (const auto number = NumberIn(name); number.has_value()) return *number;
  std::vector<char> room(kRecordBytes);
  group record = {};
  group* found = nullptr;
  ::getgrnam_r(name.c_str(), &record, room.data(), room.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return Invalid(fmt::format("checking --allow-gid {}: this system has no such group; check the name, "
                             "or give its number{}",
                             name,
                             name.find(',') == std::string::npos
                                 ? ""
                                 : ". It is one group, as the sockets have one; --allow-uid takes several users"));
}

absl::Status CheckRoot(const std::string& root) {
  if (!root.starts_with('/')) {
    return Invalid(fmt::format("checking --allow-root {}: write an absolute path", root));
  }
  const UniqueFd folder(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    return Invalid(fmt::format("checking --allow-root {}: {}; name a folder that this daemon sees",
                               root, std::strerror(errno)));
  }
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const UniqueFd same(
      static_cast<int>(::syscall(SYS_openat2, folder.get(), ".", &how, sizeof(how))));
  if (same.valid()) return absl::OkStatus();
  return Invalid(fmt::format("checking --allow-root {}: this system cannot keep links inside of a "
                             "folder (openat2: {}); it takes Linux 5.6, and a sandbox that lets that "
                             "call through",
                             root, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<AccessPolicy> ReadAccessPolicy(const Config& config) {
  AccessPolicy policy{.own = ::geteuid()};
  if (config.allow_gid.empty()) {
    if (config.allow_uid.empty()) return policy;
    return Invalid("checking --allow-uid: name a group with --allow-gid, too, that this daemon and "
                   "those users are in; it gets the sockets");
  }
  CKPTD_ASSIGN_OR_RETURN(policy.group, GroupNamed(config.allow_gid));
  for (const std::string& name : SplitAtCommas(config.allow_uid)) {
    CKPTD_ASSIGN_OR_RETURN(const uid_t user, UserNamed(name));
    policy.users.insert(user);
  }
  return policy;
}

absl::StatusOr<std::vector<std::string>> ReadAllowedRoots(const Config& config) {
  std::vector<std::string> roots = SplitAtCommas(config.allow_root);
  for (std::string& root : roots) {
    CKPTD_RETURN_IF_ERROR(CheckRoot(root));
    while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  }
  return roots;
}

}  // namespace ckptd

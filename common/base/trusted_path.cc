#include "common/base/trusted_path.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace ckptd {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel's
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
constexpr mode_t kModeBits = 07777;

// Whether that is the private group of a user, in which nobody else is: systems that give each user one
// let it write by default (umask 002). Root's group is no such one.
bool IsPrivateGroup(gid_t group, uid_t owner) {
  std::vector<char> room(64 << 10);
  passwd user = {};
  passwd* found = nullptr;
  if (owner == 0 || ::getpwuid_r(owner, &user, room.data(), room.size(), &found) != 0 ||
      found == nullptr || user.pw_gid != group) {
    return false;
  }
  const std::string name = user.pw_name;
  struct group entry = {};
  struct group* there = nullptr;
  if (::getgrgid_r(group, &entry, room.data(), room.size(), &there) != 0 || there == nullptr) return false;
  for (char** member = entry.gr_mem; *member != nullptr; ++member) {
    if (name != *member) return false;
  }
  return name == entry.gr_name;
}

// One walk along a path, from the root down. Nobody else can change what was passed, so names may be
// used again: each is looked at in a folder that was found safe.
class Walk {
 public:
  explicit Walk(std::vector<uid_t> trusted) : trusted_(std::move(trusted)) {}

  std::optional<std::string> Along(const std::filesystem::path& path) {
    struct stat root = {};
    if (::stat("/", &root) != 0) return Unseen("/");
    // In a user namespace that does not know root, its files belong to a number for nobody.
    root_owner_ = root.st_uid;
    trusted_.insert(trusted_.end(), {0, root_owner_});
    device_ = root.st_dev;
    if (auto why = CheckFolder("/", root)) return why;
    Push(path);
    while (!left_.empty()) {
      const std::string name = std::move(left_.back());
      left_.pop_back();
      if (name.empty() || name == "." || name == "/") continue;
      if (name == "..") {
        at_.erase(at_.empty() ? 0 : at_.rfind('/'));  // it holds no links
        continue;
      }
      if (auto why = Enter(at_ + "/" + name)) return why;
    }
    return std::nullopt;
  }

 private:
  static std::string Unseen(const std::string& path) {
    return fmt::format("{} cannot be looked at ({})", path, std::strerror(errno));
  }

  void Push(const std::filesystem::path& path) {
    std::vector<std::string> names;
    for (const auto& name : path) names.push_back(name.string());
    left_.insert(left_.end(), names.rbegin(), names.rend());
  }

  std::optional<std::string> Enter(const std::string& here) {
    struct stat info = {};
    if (::lstat(here.c_str(), &info) != 0) return Unseen(here);
    if (!IsTrusted(info.st_uid)) return Foreign(here, info);
    if (S_ISLNK(info.st_mode)) return Follow(here);
    if (S_ISDIR(info.st_mode)) {
      // "/." mounts what is mounted on demand.
      if (::stat((here + "/.").c_str(), &info) != 0) return Unseen(here);
      if (auto why = CheckFolder(here, info)) return why;
      device_ = info.st_dev;
    }
    at_ = here;
    return std::nullopt;
  }

  std::optional<std::string> Follow(const std::string& link) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(link, error);
    if (error || ++links_ > kMaxLinks) return fmt::format("{} is a link that leads nowhere", link);
    if (target.is_absolute()) at_.clear();
    Push(target);
    return std::nullopt;
  }

  bool IsTrusted(uid_t user) const {
    return std::find(trusted_.begin(), trusted_.end(), user) != trusted_.end();
  }

  static std::string Foreign(const std::string& path, const struct stat& info) {
    return fmt::format("{} belongs to user {}", path, info.st_uid);
  }

  std::optional<std::string> CheckFolder(const std::string& path, const struct stat& info) const {
    if (!IsTrusted(info.st_uid)) return Foreign(path, info);
    const bool of_root = info.st_uid == 0 || info.st_uid == root_owner_;
    const bool mounted = of_root && info.st_dev != device_;
    const mode_t others = info.st_mode & kOthersWrite;
    if (others == 0 || (info.st_mode & S_ISVTX) != 0 || mounted) return std::nullopt;
    if (others == S_IWGRP && IsPrivateGroup(info.st_gid, info.st_uid)) return std::nullopt;
    return fmt::format("other users may write in {} (mode {:04o}; `chmod go-w` or `chmod +t` ends that)",
                       path, info.st_mode & kModeBits);
  }

  std::vector<uid_t> trusted_;
  uid_t root_owner_ = 0;
  dev_t device_ = 0;               // of the folder `at_`
  std::string at_;                 // without links; empty: the root
  std::vector<std::string> left_;  // the next one last
  int links_ = 0;
};

}  // namespace

std::optional<std::string> WhyPathIsUnsafe(const std::string& path, std::vector<uid_t> trusted) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return fmt::format("{} cannot be looked at ({})", path, error.message());
  return Walk(std::move(trusted)).Along(absolute);
}

}  // namespace ckptd

#include "server/memory/host/available_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "fmt/format.h"
#include "server/memory/host/proc_file.h"

namespace ckptd {
namespace {

// The number after `key` at the start of a line. 0 if there is none.
uint64_t Field(std::string_view text, std::string_view key) {
  for (const std::string_view line : SplitText(text, '\n')) {
    if (line.substr(0, key.size()) == key)
      return LeadingNumber(line.substr(key.size())).value_or(0);
  }
  return 0;
}

// The files in which a cgroup version keeps limit, usage and page cache.
struct Names {
  const char* kind;
  const char* limit;
  const char* usage;
  const char* inactive_file;
  const char* active_file;
};
constexpr Names kV2 = {"cgroup2", "memory.max", "memory.current", "inactive_file ", "active_file "};
constexpr Names kV1 = {"cgroup1", "memory.limit_in_bytes", "memory.usage_in_bytes",
                       "total_inactive_file ", "total_active_file "};

using Levels = std::vector<MemoryLevel>;

// The kernel's number of the group, which is one wherever its folder is mounted.
std::string NameOf(const std::string& directory, const Names& names) {
  struct stat info = {};
  if (::stat(directory.c_str(), &info) != 0) return "";
  return fmt::format("{}-{}", names.kind, info.st_ino);
}

// Adds a group that has a limit. `directory` ends in '/'.
void AddGroup(const std::string& directory, const Names& names, Levels& levels) {
  const std::optional<std::string> limit_text = ReadProcFile(directory + names.limit);
  const std::optional<std::string> usage_text = ReadProcFile(directory + names.usage);
  if (!limit_text.has_value() || !usage_text.has_value()) return;
  const std::optional<uint64_t> limit = LeadingNumber(*limit_text);
  const uint64_t usage = LeadingNumber(*usage_text).value_or(0);
  // Version 1 has a number for "none", far above what any machine has.
  if (!limit.has_value() || *limit >= levels.front().limit) return;
  const std::string stat = ReadProcFile(directory + "memory.stat").value_or("");
  const uint64_t cache = Field(stat, names.inactive_file) + Field(stat, names.active_file);
  const uint64_t used = usage - std::min(usage, cache);
  levels.push_back({NameOf(directory, names), *limit, *limit - std::min(*limit, used)});
}

// Adds the group at `path` ("/a/b") below `mount` and its parents. In a container, `path` may be
// the host's while the mount shows only ours. So groups that do not exist are skipped, and the top
// of the mount always counts.
void AddGroups(const std::string& mount, std::string path, const Names& names, Levels& levels) {
  if (path.find("..") != std::string::npos) path.clear();
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    AddGroup(mount + path + "/", names, levels);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

absl::StatusOr<std::vector<MemoryLevel>> MemoryLevels(const std::string& root) {
  const std::optional<std::string> meminfo = ReadProcFile(root + "proc/meminfo");
  if (!meminfo.has_value()) {
    return absl::InternalError("reading " + root + "proc/meminfo: is /proc mounted here?");
  }
  Levels levels = {{kMachineLevel, Field(*meminfo, "MemTotal:") * 1024,
                    Field(*meminfo, "MemAvailable:") * 1024}};
  const std::string groups = ReadProcFile(root + "proc/self/cgroup").value_or("");
  for (const std::string_view line : SplitText(groups, '\n')) {
    // "hierarchy:controllers:path". In v2 it is "0::path".
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) {
      AddGroups(root + "sys/fs/cgroup", path, kV2, levels);
      AddGroups(root + "sys/fs/cgroup/unified", path, kV2, levels);
      continue;
    }
    for (const std::string_view controller : SplitText(controllers, ',')) {
      if (controller == "memory") AddGroups(root + "sys/fs/cgroup/memory", path, kV1, levels);
    }
  }
  return levels;
}

absl::StatusOr<uint64_t> AvailableMemory(const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const Levels levels, MemoryLevels(root));
  return std::ranges::min(levels, {}, &MemoryLevel::left).left;
}

absl::StatusOr<uint64_t> TotalMemory(const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const Levels levels, MemoryLevels(root));
  return std::ranges::min(levels, {}, &MemoryLevel::limit).limit;
}

}  // namespace ckptd

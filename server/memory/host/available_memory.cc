#include "server/memory/host/available_memory.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "server/memory/host/proc_file.h"

namespace ckptd {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

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
  const char* limit;
  const char* usage;
  const char* inactive_file;
  const char* active_file;
};
constexpr Names kV2 = {"memory.max", "memory.current", "inactive_file ", "active_file "};
constexpr Names kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
                       "total_active_file "};

struct Room {
  uint64_t limit = kUnlimited;
  uint64_t left = kUnlimited;
  void Narrow(const Room& other) {
    limit = std::min(limit, other.limit);
    left = std::min(left, other.left);
  }
};

// The limit and the room of one group. `directory` ends in '/'.
Room RoomInGroup(const std::string& directory, const Names& names) {
  const std::optional<std::string> limit_text = ReadProcFile(directory + names.limit);
  const std::optional<std::string> usage_text = ReadProcFile(directory + names.usage);
  if (!limit_text.has_value() || !usage_text.has_value()) return {};
  const std::optional<uint64_t> limit = LeadingNumber(*limit_text);
  const uint64_t usage = LeadingNumber(*usage_text).value_or(0);
  if (!limit.has_value()) return {};
  const std::string stat = ReadProcFile(directory + "memory.stat").value_or("");
  const uint64_t cache = Field(stat, names.inactive_file) + Field(stat, names.active_file);
  const uint64_t used = usage - std::min(usage, cache);
  return {*limit, *limit - std::min(*limit, used)};
}

// The smallest room of the group at `path` ("/a/b") below `mount` and of its parents. In a
// container, `path` may be the host's while the mount shows only ours. So groups that do not
// exist are skipped, and the top of the mount always counts.
Room RoomInHierarchy(const std::string& mount, std::string path, const Names& names) {
  if (path.find("..") != std::string::npos) path.clear();
  Room room;
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    room.Narrow(RoomInGroup(mount + path + "/", names));
    if (path.empty()) return room;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

absl::StatusOr<Room> ReadRoom(const std::string& root) {
  const std::optional<std::string> meminfo = ReadProcFile(root + "proc/meminfo");
  if (!meminfo.has_value()) {
    return absl::InternalError("reading " + root + "proc/meminfo: is /proc mounted here?");
  }
  Room room = {Field(*meminfo, "MemTotal:") * 1024, Field(*meminfo, "MemAvailable:") * 1024};
  const std::string groups = ReadProcFile(root + "proc/self/cgroup").value_or("");
  for (const std::string_view line : SplitText(groups, '\n')) {
    // "hierarchy:controllers:path". In v2 it is "0::path".
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers.empty()) {
      room.Narrow(RoomInHierarchy(root + "sys/fs/cgroup", path, kV2));
      room.Narrow(RoomInHierarchy(root + "sys/fs/cgroup/unified", path, kV2));
      continue;
    }
    for (const std::string_view controller : SplitText(controllers, ',')) {
      if (controller != "memory") continue;
      room.Narrow(RoomInHierarchy(root + "sys/fs/cgroup/memory", path, kV1));
    }
  }
  return room;
}

}  // namespace

absl::StatusOr<uint64_t> AvailableMemory(const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const Room room, ReadRoom(root));
  return room.left;
}

absl::StatusOr<uint64_t> TotalMemory(const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const Room room, ReadRoom(root));
  return room.limit;
}

}  // namespace ckptd

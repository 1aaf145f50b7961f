#include "server/load/storage_stalls.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

std::string MountsOfThisProcess() {
  std::ifstream file("/proc/self/mountinfo");
  return {std::istreambuf_iterator<char>(file), {}};
}

// mountinfo has blanks, tabs, newlines and backslashes as \ooo.
std::string Unescape(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 3 < text.size();
    if (!escaped) {
      plain += text[i];
      continue;
    }
    plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
    i += 3;
  }
  return plain;
}

bool LiesIn(std::string_view path, std::string_view folder) {
  if (folder == "/") return path.starts_with("/");
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

double Seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string Describe(const StorageWatch::Stalled& stalled) {
  return fmt::format("{} has not answered for {:.0f} s (at byte {})", stalled.file,
                     Seconds(stalled.time), stalled.offset);
}

}  // namespace

std::string MountOf(std::string_view path, std::string_view mountinfo) {
  std::string found;
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line, skipped, mount; std::getline(lines, line);) {
    std::istringstream fields(line);
    if (!(fields >> skipped >> skipped >> skipped >> skipped >> mount)) continue;
    mount = Unescape(mount);
    if (LiesIn(path, mount) && mount.size() >= found.size()) found = mount;
  }
  return found;
}

std::shared_ptr<StorageWatch> StorageStalls::Watch(const std::string& source) {
  auto watch = std::make_shared<StorageWatch>(source, MountOf(source, MountsOfThisProcess()));
  MutexLock lock(mutex_);
  std::erase_if(watches_, [](const auto& one) { return one.expired(); });
  watches_.push_back(watch);
  return watch;
}

absl::StatusOr<SourceAccess> StorageStalls::Admit(const std::string& doing,
                                                  const std::string& source, SourceAccess access) {
  CKPTD_RETURN_IF_ERROR(Check(doing, source));
  access.watch = Watch(source);
  return access;
}

std::vector<std::shared_ptr<StorageWatch>> StorageStalls::Standing() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<StorageWatch>> standing;
  for (const auto& one : watches_) {
    std::shared_ptr<StorageWatch> watch = one.lock();
    if (watch != nullptr && watch->left_behind() && watch->Oldest(patience_)) {
      standing.push_back(std::move(watch));
    }
  }
  return standing;
}

absl::Status StorageStalls::Check(const std::string& doing, const std::string& source) const {
  const auto standing = Standing();
  if (standing.empty()) return absl::OkStatus();
  const std::string mount = MountOf(source, MountsOfThisProcess());
  size_t of_mount = 0;
  for (const auto& watch : standing) {
    of_mount += watch->mount() == mount ? 1 : 0;
    if (watch->source() != source && of_mount < kMostOfMount) continue;
    const auto stalled = watch->Oldest({});
    if (!stalled.has_value()) continue;
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kStorageStalled,
                     fmt::format("{} {}: it is not begun while {}, which earlier ones of {} wait "
                                 "for; look at the server and the mount of that file, then load "
                                 "again",
                                 doing, source, Describe(*stalled),
                                 watch->source() == source ? "it" : "its mount " + mount),
                     {{"file", stalled->file}});
  }
  return absl::OkStatus();
}

std::string StorageStalls::DescribeHeld() const {
  uint64_t bytes = 0;
  std::string file;
  for (const auto& watch : Standing()) {
    const auto stalled = watch->Oldest({});
    if (watch->held_bytes() == 0 || !stalled.has_value()) continue;
    bytes += watch->held_bytes();
    if (file.empty()) file = Describe(*stalled);
  }
  if (bytes == 0) return {};
  return fmt::format("{:.1f} MB are kept for reads that have not returned: {}",
                     static_cast<double>(bytes) / 1e6, file);
}

absl::Status StorageStalled(const std::string& doing, const StorageWatch::Stalled& stalled) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kStorageStalled,
                   fmt::format("{}: the timeout passed while {}; look at the server and the mount "
                               "of that file, then load again",
                               doing, Describe(stalled)),
                   {{"file", stalled.file}});
}

}  // namespace ckptd

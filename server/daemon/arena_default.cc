#include "server/daemon/arena_default.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "server/daemon/run_directory.h"
#include "server/daemon/sizes.h"

namespace ckptd {
namespace {

// The share of available memory for a job about which nothing is known ...
constexpr uint64_t kShare = 4;
// ... and its limit per host: more should not be faulted in while trainers start.
constexpr uint64_t kMostUnknown = uint64_t{16} << 30;
// More than any host has.
constexpr uint64_t kMostLoaded = uint64_t{1} << 50;
constexpr size_t kMostBytes = 64;  // limit of the file

// The file's line before the number. Shards of a job with another world size differ in size.
std::string LinePrefix(const Config& config) {
  return fmt::format("ckptd arena 1, world size {}, largest shard ", config.world_size);
}

std::optional<uint64_t> ParseLoaded(std::string_view text, std::string_view before) {
  if (!text.starts_with(before) || !text.ends_with('\n')) return std::nullopt;
  text.remove_prefix(before.size());
  text.remove_suffix(1);
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || bytes == 0 || bytes > kMostLoaded) return std::nullopt;
  return bytes;
}

}  // namespace

ArenaSize DefaultArena(const ArenaFacts& facts) {
  ArenaSize size;
  size.automatic = true;
  if (facts.loaded.has_value()) {
    size.bytes = *facts.loaded;
    size.why = "as much as the largest shard that this job loaded when it ran last";
  } else {
    const uint64_t daemons = std::max(facts.daemons, 1U);
    size.bytes = std::min(facts.available / kShare, kMostUnknown) / daemons;
    size.why = fmt::format("a quarter of the memory that was available at start, at most {} GiB, "
                           "divided among {} daemon{}; the first load shows how much is needed",
                           kMostUnknown >> 30, daemons, daemons == 1 ? "" : "s");
  }
  if (size.bytes > facts.budget) {
    size.bytes = facts.budget;
    size.why += "; no more than the budget";
  }
  return size;
}

absl::StatusOr<ArenaSize> ChooseArena(const Config& config, uint64_t available, uint64_t budget) {
  if (config.arena == kAutoArena) {
    return DefaultArena({available, budget, config.local_size, LastLoaded(config)});
  }
  ArenaSize size;
  CKPTD_ASSIGN_OR_RETURN(size.bytes, ParseShare(config.arena, budget));
  size.why = size.bytes == 0 ? "--arena 0: it grows with loads" : "--arena " + config.arena;
  return size;
}

absl::Status RememberLoaded(const Config& config, uint64_t bytes) {
  const std::string path = PathsOf(config).arena;
  const std::string beside = path + ".new";
  const std::string text = fmt::format("{}{}\n", LinePrefix(config), bytes);
  const UniqueFd file(
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, "writing " + beside);
  errno = ENOSPC;  // a short write is treated as a full disk
  const bool whole = ::write(file.get(), text.data(), text.size()) == std::ssize(text);
  if (whole && std::rename(beside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status failed = ErrnoStatus(errno, "writing " + path);
  ::unlink(beside.c_str());
  return failed;
}

std::optional<uint64_t> LastLoaded(const Config& config) {
  const std::string path = PathsOf(config).arena;
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMostBytes);
  if (text.status().code() == absl::StatusCode::kNotFound) return std::nullopt;
  const auto loaded = text.ok() ? ParseLoaded(*text, LinePrefix(config)) : std::nullopt;
  if (!loaded.has_value()) {
    Log(LogLevel::kInfo, "memory: {} is not about a job of this size, so it is not used", path);
  }
  return loaded;
}

}  // namespace ckptd

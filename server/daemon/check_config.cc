#include "server/daemon/check_config.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/layout/layout.h"
#include "server/daemon/access_settings.h"
#include "server/daemon/arena_default.h"
#include "server/daemon/metrics_port.h"
#include "server/daemon/network.h"
#include "server/daemon/preload.h"
#include "server/daemon/sizes.h"
#include "server/protocol/reading.h"

namespace ckptd {
namespace {

// More than there are cores, or requests that storage answers at once.
constexpr uint32_t kMostReaderThreads = 1024;
constexpr uint32_t kMostPort = 65535;
constexpr double kMostIdleSeconds = 366 * 86400;

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

// Names of sockets are sent in messages and in the environment, so they must be plain text.
bool IsPlainText(const std::string& path) {
  return ValidUtf8Prefix(path) == path.size() &&
         std::none_of(path.begin(), path.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
}

bool NamesAFolder(const std::string& job) {
  return !job.empty() && job != "." && job != ".." && job.find('/') == std::string::npos &&
         IsPlainText(job);
}

absl::Status CheckRank(const Config& config) {
  if (config.world_size == 0 || config.rank >= config.world_size) {
    return Invalid(fmt::format("checking --rank {} of --world-size {}: ranks count from 0 to "
                               "world-size - 1",
                               config.rank, config.world_size));
  }
  if (config.world_size > LayoutRules::kMaxWorldSize) {
    return Invalid(fmt::format("checking --world-size {}: at most {}", config.world_size,
                               LayoutRules::kMaxWorldSize));
  }
  if (config.local_size == 0) return Invalid("checking --local-size: at least 1");
  return absl::OkStatus();
}

absl::Status CheckNames(const Config& config) {
  if (!NamesAFolder(config.job)) {
    return Invalid("checking --job: it names a folder, so it is not empty, is UTF-8, and has no "
                   "slash and no control characters");
  }
  if (!IsPlainText(config.host_id)) {
    return Invalid("checking --host-id: it must be UTF-8 without control characters");
  }
  if (!IsPlainText(config.run_dir)) {
    return Invalid("checking --run-dir: it must be UTF-8 without control characters");
  }
  for (const std::string* name : {&config.job, &config.run_dir}) {
    if (name->find("{rank}") == std::string::npos && name->find("{local_rank}") == std::string::npos) {
      continue;
    }
    return Invalid(fmt::format("checking --job and --run-dir: clients replace {{rank}} and "
                               "{{local_rank}} in addresses, and would not find {}; choose another "
                               "name",
                               *name));
  }
  return absl::OkStatus();
}

// `value` must be one of `words`.
absl::Status CheckWord(std::string_view flag, const std::string& value,
                       std::initializer_list<std::string_view> words) {
  if (std::find(words.begin(), words.end(), value) != words.end()) return absl::OkStatus();
  std::string listed;
  for (const std::string_view& word : words) {
    const bool last = &word == words.end() - 1;
    listed += fmt::format("{}{}", listed.empty() ? "" : last ? " or " : ", ", word);
  }
  return Invalid(fmt::format("checking {} {}: use {}", flag, value, listed));
}

absl::Status CheckWords(const Config& config) {
  CKPTD_RETURN_IF_ERROR(CheckWord("--memory", config.memory, {"auto", "host", "cuda"}));
  CKPTD_RETURN_IF_ERROR(CheckWord("--huge-pages", config.huge_pages, {"auto", "off"}));
  CKPTD_RETURN_IF_ERROR(CheckWord("--peer-auth", config.peer_auth, {"required", "none"}));
  CKPTD_RETURN_IF_ERROR(CheckWord("--idle", config.idle, {"keep", "release"}));
  CKPTD_RETURN_IF_ERROR(
      CheckWord("--load-mode", config.load_mode, {"auto", "shared", "private", "exclusive"}));
  CKPTD_RETURN_IF_ERROR(CheckWord("--ready-when", config.ready_when, {"group", "loaded"}));
  CKPTD_RETURN_IF_ERROR(ParseReaderPolicy(config.reader).status());
  CKPTD_RETURN_IF_ERROR(ParseIoMode(config.read).status());
  CKPTD_RETURN_IF_ERROR(ParseCommChoice(config.comm).status());
  LogLevel level = LogLevel::kInfo;
  if (ParseLogLevel(config.log_level, level)) return absl::OkStatus();
  return Invalid(fmt::format("checking --log-level {}: use trace, debug, info, warn, error or off",
                             config.log_level));
}

absl::Status CheckPorts(const Config& config) {
  if (config.peer_port > kMostPort || config.local_size - 1 > kMostPort - config.peer_port) {
    return Invalid(fmt::format("checking --peer-port {}: {} daemons of a host take one port each "
                               "from there, and ports end at {}",
                               config.peer_port, config.local_size, kMostPort));
  }
  const auto health = ListenAddress(config.health_port);
  if (!health.ok()) return Invalid("checking --health-port: " + MessageOf(health.status()));
  const auto metrics = MetricsAddress(config.metrics);
  return metrics.ok() ? absl::OkStatus()
                      : Invalid("checking --metrics: " + MessageOf(metrics.status()));
}

absl::Status CheckGroup(const Config& config) {
  const size_t colon = config.rendezvous.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == config.rendezvous.size()) {
    return Invalid(fmt::format("checking --rendezvous {}: write host:port", config.rendezvous));
  }
  const bool beats = config.heartbeat_interval >= 0.01 &&
                     config.heartbeat_timeout >= 2 * config.heartbeat_interval &&
                     config.heartbeat_timeout <= 3600;
  if (beats) return absl::OkStatus();
  return Invalid(fmt::format("checking --heartbeat-timeout {}: it must be at least twice "
                             "--heartbeat-interval {} (0.01 or more) and at most 3600",
                             config.heartbeat_timeout, config.heartbeat_interval));
}

absl::Status CheckSizes(const Config& config) {
  if (config.reader_threads > kMostReaderThreads) {
    return Invalid(fmt::format("checking --reader-threads {}: at most {}, or 0 for one per core",
                               config.reader_threads, kMostReaderThreads));
  }
  CKPTD_RETURN_IF_ERROR(ParseBytes(config.segment_bytes).status());
  CKPTD_RETURN_IF_ERROR(ParseBytes(config.staging).status());
  CKPTD_RETURN_IF_ERROR(ParseShare(config.memory_budget, 1).status());
  CKPTD_RETURN_IF_ERROR(ParseShare(config.host_tier, 1).status());
  if (!(config.arena_idle >= 0 && config.arena_idle <= kMostIdleSeconds)) {
    return Invalid(fmt::format("checking --arena-idle {}: seconds, up to {} (a year), or 0 to keep "
                               "memory for good",
                               config.arena_idle, kMostIdleSeconds));
  }
  return config.arena == kAutoArena ? absl::OkStatus() : ParseShare(config.arena, 1).status();
}

absl::Status CheckPreload(const Config& config) {
  if (!config.load.empty()) return PreloadRequest(config, false).status();
  const char* const flag = !config.layout.empty()            ? "--layout"
                           : !config.dtype.empty()           ? "--dtype"
                           : config.ready_when == "loaded" ? "--ready-when loaded"
                                                             : nullptr;
  if (flag == nullptr) return absl::OkStatus();
  return Invalid(fmt::format("checking {}: it applies to what is loaded at the start; name that "
                             "with --load, or leave it out",
                             flag));
}

// Refuses settings that only GPUs support, if shards are in host memory.
absl::Status CheckHostMemory(const Config& config) {
  if (config.comm == "nccl") {
    return Invalid("checking --comm nccl: NCCL carries bytes between GPUs, and --memory is host; "
                   "leave one of the two out");
  }
  CKPTD_ASSIGN_OR_RETURN(const uint64_t host_tier, ParseShare(config.host_tier, 100));
  if (host_tier == 0) return absl::OkStatus();
  return Invalid("checking --host-tier: it is for shards in a GPU's memory, and --memory is host; "
                 "leave one of the two out");
}

}  // namespace

absl::Status CheckConfig(const Config& config) {
  CKPTD_RETURN_IF_ERROR(CheckRank(config));
  CKPTD_RETURN_IF_ERROR(CheckNames(config));
  CKPTD_RETURN_IF_ERROR(CheckWords(config));
  CKPTD_RETURN_IF_ERROR(CheckGroup(config));
  CKPTD_RETURN_IF_ERROR(CheckPorts(config));
  CKPTD_RETURN_IF_ERROR(CheckSizes(config));
  CKPTD_RETURN_IF_ERROR(CheckPreload(config));
  CKPTD_RETURN_IF_ERROR(ReadAccessPolicy(config).status());
  CKPTD_RETURN_IF_ERROR(ReadAllowedRoots(config).status());
  return config.memory == "host" ? CheckHostMemory(config) : absl::OkStatus();
}

}  // namespace ckptd

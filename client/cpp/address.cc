#include "client/cpp/address.h"

#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "common/base/percent.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

constexpr std::string_view kSocketEnd = ".sock";
constexpr std::string_view kAdminEnd = ".admin.sock";
constexpr uint32_t kMaxRank = 1'000'000;

absl::Status Invalid(std::string_view message, std::string_view key, std::string_view value) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest, message,
                   {{std::string(key), std::string(value)}});
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// The number in the first of two variables that is set. 0 if neither is.
absl::StatusOr<uint32_t> NumberOf(const Environment& environment, const std::string& first,
                                  const std::string& second) {
  for (const std::string& name : {first, second}) {
    const std::optional<std::string> text = environment(name);
    if (!text.has_value()) continue;
    uint32_t value = 0;
    const char* end = text->data() + text->size();
    const auto parsed = std::from_chars(text->data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || value > kMaxRank) {
      return Invalid(fmt::format("choosing the daemon's address: the environment says {}={}, which "
                                 "is no rank; unset it or name the daemon by address",
                                 name, *text),
                     name, *text);
    }
    return value;
  }
  return 0;
}

absl::StatusOr<uint32_t> RankOf(const AddressQuery& query, const Environment& environment) {
  if (query.rank.has_value()) return *query.rank;
  return NumberOf(environment, "RANK", "SLURM_PROCID");
}

std::string JobOf(const AddressQuery& query, const Environment& environment) {
  if (!query.job.empty()) return query.job;
  for (const char* name : {"CKPTD_JOB", "SLURM_JOB_ID"}) {
    if (const auto job = environment(name)) return *job;
  }
  return "default";
}

absl::StatusOr<std::string> Expand(const std::string& pattern, const AddressQuery& query,
                                   const Environment& environment) {
  std::string out;
  size_t at = 0;
  while (at < pattern.size()) {
    const size_t open = pattern.find('{', at);
    if (open == std::string::npos) break;
    const size_t close = pattern.find('}', open);
    const std::string key = pattern.substr(
        open, close == std::string::npos ? std::string::npos : close - open + 1);
    out += pattern.substr(at, open - at);
    uint32_t value = 0;
    if (key == "{rank}") {
      CKPTD_ASSIGN_OR_RETURN(value, RankOf(query, environment));
    } else if (key == "{local_rank}") {
      CKPTD_ASSIGN_OR_RETURN(value, NumberOf(environment, "LOCAL_RANK", "SLURM_LOCALID"));
    } else {
      return Invalid(fmt::format("reading the daemon's address {}: {} is no placeholder; use "
                                 "{{rank}} or {{local_rank}}",
                                 pattern, key),
                     "address", pattern);
    }
    out += std::to_string(value);
    at = open + key.size();
  }
  return out + pattern.substr(at);
}

absl::StatusOr<Address> UnixAddress(std::string path, std::string chosen_by) {
  if (path.empty() || path.front() != '/') {
    return Invalid(fmt::format("reading the daemon's address {}: the path of a Unix socket must be "
                               "absolute, as in unix:///run/ckptd/default/rank-0.sock",
                               path),
                   "address", path);
  }
  // One byte of sun_path is the terminator.
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return Invalid(fmt::format("reading the daemon's address {}: it has {} bytes and Unix sockets "
                               "take at most {}; choose a shorter directory by CKPTD_RUN_DIR",
                               path, path.size(), sizeof(sockaddr_un{}.sun_path) - 1),
                   "address", path);
  }
  Address address;
  address.target = UnixTarget(path);
  address.path = std::move(path);
  address.chosen_by = std::move(chosen_by);
  return address;
}

absl::StatusOr<Address> ParseAddress(const std::string& text, std::string chosen_by) {
  if (StartsWith(text, "unix://")) return UnixAddress(text.substr(7), std::move(chosen_by));
  if (StartsWith(text, "unix:")) return UnixAddress(text.substr(5), std::move(chosen_by));
  if (StartsWith(text, "/")) return UnixAddress(text, std::move(chosen_by));
  const size_t colon = text.rfind(':');
  uint16_t port = 0;
  if (colon == std::string::npos || colon == 0 || text.find('/') != std::string::npos ||
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), port).ptr !=
          text.data() + text.size() ||
      port == 0) {
    return Invalid(fmt::format("reading the daemon's address {} (from {}): expected "
                               "unix:///path/to/rank-0.sock, an absolute path, or host:port",
                               text, chosen_by),
                   "address", text);
  }
  return Address{text, "", std::move(chosen_by)};
}

absl::StatusOr<std::string> RunDir(const Environment& environment) {
  if (auto dir = environment("CKPTD_RUN_DIR")) return *dir;
  if (auto dir = environment("XDG_RUNTIME_DIR")) return *dir + "/ckptd";
  if (geteuid() == 0) return std::string("/run/ckptd");
  if (auto home = environment("HOME")) return *home + "/.ckptd/run";
  return Invalid("choosing the daemon's address: none of CKPTD_RUN_DIR, XDG_RUNTIME_DIR and HOME is "
                 "set; set CKPTD_ADDRESS to the daemon's socket",
                 "variable", "CKPTD_RUN_DIR");
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

absl::StatusOr<Address> ResolveAddress(const AddressQuery& query, const Environment& environment) {
  if (!query.argument.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const std::string text, Expand(query.argument, query, environment));
    return ParseAddress(text, "the argument");
  }
  if (const auto pattern = environment("CKPTD_ADDRESS")) {
    CKPTD_ASSIGN_OR_RETURN(const std::string text, Expand(*pattern, query, environment));
    return ParseAddress(text, "CKPTD_ADDRESS");
  }
  const std::string job = JobOf(query, environment);
  if (job.find('/') != std::string::npos || job == "." || job == "..") {
    return Invalid(fmt::format("choosing the daemon's address: the job name {} cannot name a "
                               "folder; use letters, digits, dots and dashes",
                               job),
                   "job", job);
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string run_dir, RunDir(environment));
  CKPTD_ASSIGN_OR_RETURN(const uint32_t rank, RankOf(query, environment));
  return UnixAddress(fmt::format("{}/{}/rank-{}.sock", run_dir, job, rank), "the default");
}

Address AdminAddress(const Address& address) {
  if (address.path.empty() || !EndsWith(address.path, kSocketEnd) ||
      EndsWith(address.path, kAdminEnd)) {
    return address;
  }
  Address admin = address;
  admin.path = address.path.substr(0, address.path.size() - kSocketEnd.size());
  admin.path += kAdminEnd;
  admin.target = UnixTarget(admin.path);
  return admin;
}

Address WorkloadAddress(const Address& address) {
  if (!EndsWith(address.path, kAdminEnd)) return address;
  Address workload = address;
  workload.path = address.path.substr(0, address.path.size() - kAdminEnd.size());
  workload.path += kSocketEnd;
  workload.target = UnixTarget(workload.path);
  return workload;
}

}  // namespace client
}  // namespace ckptd

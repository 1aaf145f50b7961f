#include "server/daemon/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "server/core/reading.h"

namespace ckptd {
namespace {

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},          {"b", 1},          {"k", 1e3},        {"kb", 1e3},
                           {"m", 1e6},       {"mb", 1e6},       {"g", 1e9},        {"gb", 1e9},
                           {"t", 1e12},      {"tb", 1e12},      {"kib", 1024.0},   {"mib", 1048576.0},
                           {"gib", 1073741824.0}, {"tib", 1099511627776.0}};

// Names of sockets travel, in messages and in the environment.
bool IsPlainText(const std::string& path) {
  return ValidUtf8Prefix(path) == path.size() &&
         std::none_of(path.begin(), path.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
}

bool NamesAFolder(const std::string& job) {
  return !job.empty() && job != "." && job != ".." && job.find('/') == std::string::npos &&
         IsPlainText(job);
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  double number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  std::string unit;
  for (const char* c = stop; c != end; ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  const auto* const known = std::find_if(std::begin(kUnits), std::end(kUnits),
                                         [&](const Unit& one) { return unit == one.name; });
  const bool fits = error == std::errc() && std::isfinite(number) && number >= 0 &&
                    known != std::end(kUnits) && number * known->bytes < 9e18;
  if (!fits) {
    return Invalid(fmt::format("reading the size \"{}\": write a number with a unit, such as "
                               "16GiB, 2.5GB or 800M",
                               text));
  }
  return static_cast<uint64_t>(number * known->bytes);
}

absl::StatusOr<uint64_t> ParseShare(const std::string& text, uint64_t whole) {
  if (text.empty() || text.back() != '%') return ParseBytes(text);
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [stop, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || stop != end || !(percent > 0 && percent <= 100)) {
    return Invalid(fmt::format("reading the share \"{}\": write 1% to 100%, or a size such as "
                               "16GiB",
                               text));
  }
  return static_cast<uint64_t>(static_cast<double>(whole) * percent / 100.0);
}

std::string DefaultRunDir(const EnvironmentReader& read) {
  if (const auto dir = read("CKPTD_RUN_DIR")) return *dir;
  if (const auto dir = read("XDG_RUNTIME_DIR")) return *dir + "/ckptd";
  if (::geteuid() == 0) return "/run/ckptd";
  return read("HOME").value_or("/nonexistent") + "/.ckptd/run";
}

Config DefaultConfig(const EnvironmentReader& read) {
  Config config;
  const JobFacts facts = ReadJobFacts(read);
  config.job = facts.job.value_or(config.job);
  config.rank = facts.rank.value_or(config.rank);
  config.world_size = facts.world_size.value_or(config.world_size);
  config.local_size = facts.local_size.value_or(config.local_size);
  config.run_dir = DefaultRunDir(read);
  config.rendezvous = fmt::format("{}:{}", facts.leader.value_or("127.0.0.1"), kDefaultPort);
  return config;
}

void AddConfigFlags(CLI::App& app, Config& config) {
  const auto add = [&app](const std::string& name, auto& value, const std::string& help) {
    std::string twin = "CKPTD_" + name;
    std::transform(twin.begin(), twin.end(), twin.begin(), [](unsigned char c) {
      return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    app.add_option("--" + name, value, help)->envname(twin)->capture_default_str();
  };
  add("job", config.job, "Name of the job; daemons of other jobs are refused");
  add("rank", config.rank, "Rank of this daemon in the group; rank 0 reads storage and leads");
  add("world-size", config.world_size, "Daemons in the group, one per trainer process");
  add("local-size", config.local_size, "Daemons of the group on this host; they share its memory");
  add("run-dir", config.run_dir, "Directory of the sockets; each job has a folder in it, mode 0700");
  add("rendezvous", config.rendezvous, "host:port on which rank 0 listens for the others");
  add("advertise", config.advertise,
      "Host name or address under which the others reach this daemon (found out if not given)");
  add("host-id", config.host_id,
      "Name of this host; daemons of equal names share memory instead of sending bytes (the "
      "kernel's boot id if not given)");
  add("peer-auth", config.peer_auth,
      "How daemons of the group know each other: required, by group key or certificate, over "
      "encrypted connections; none lets everybody in who reaches the peer port");
  add("group-key-file", config.group_key_file,
      "File with the group key, 32 characters or more and the same for all daemons (CKPTD_GROUP_KEY "
      "may hold the key itself); launch makes one for a group on one host");
  add("tls-cert", config.tls_cert,
      "In place of a group key: certificate of this daemon, a PEM file; both sides show theirs");
  add("tls-key", config.tls_key, "Private key of tls-cert, a PEM file");
  add("tls-ca", config.tls_ca, "Authorities that sign the certificates of all daemons, a PEM file");
  add("tls-name", config.tls_name,
      "Name that every daemon's certificate bears (the address it is reached by if not given)");
  add("reader", config.reader,
      "Who reads storage: rank0 for all, per_node the lowest rank of each host for its host, all "
      "ranks equal parts for all; rank 0's setting counts");
  add("comm", config.comm,
      "How bytes reach the GPUs of other ranks: auto writes to those it can map and leaves the others "
      "to NCCL (with readers on several hosts that share the work: all), or to streams where there is "
      "none or a client holds a shard meanwhile; host never takes NCCL, nccl always does; rank 0's "
      "setting counts");
  add("nccl-library", config.nccl_library,
      "The libnccl.so.2 to open (the system's if not given, else that of the Python environment)");
  add("memory", config.memory,
      "Where shards live: cuda in the memory of a GPU, host in the machine's; auto takes a GPU if "
      "there is one");
  add("device", config.device,
      "The GPU: its UUID (GPU-..., MIG-...), its number among the visible ones, or auto: the "
      "daemons of a host take them in turn");
  add("staging", config.staging,
      "Pinned host memory that bytes for GPUs go through; needed once, however large the shards are");
  add("idle", config.idle,
      "What stays on GPUs while no load runs: keep the context, the staging memory and the kernels, so "
      "that a load begins at once, or release all but the shards themselves");
  add("host-tier", config.host_tier,
      "Host memory for pristine copies of shards that trainers take over (EXCLUSIVE) from the GPU, so "
      "that they come back without storage: a size, or a share of what is available at start, divided "
      "among the daemons; 0: none");
  add("memory-budget", config.memory_budget,
      "Most memory for shards: a size (16GiB), or a share of what is available at start, divided "
      "among the daemons that share it");
  add("arena", config.arena,
      "Memory faulted in the background at start and reused by loads: a size or a share of the "
      "budget; 0 lets it grow with the first load");
  add("segment-bytes", config.segment_bytes, "Size of the arena's memfd segments, a multiple of 2MiB");
  add("huge-pages", config.huge_pages, "Gather the arena into huge pages: auto or off");
  add("numa", config.numa,
      "NUMA node of host memory, on machines that have several: auto takes that of the cores this "
      "daemon may run on, or, where they are of several, gives the ranks of a host the nodes in "
      "blocks; a number; or off");
  add("read", config.read,
      "How storage is read: auto takes, for each MiB, a mapping of what is cached (copies of it for "
      "GPU memory, and where mapping is slow), and else reads past the page cache (O_DIRECT); map, "
      "buffer or direct force one way");
  add("reader-threads", config.reader_threads,
      "Threads that read storage; 0 means one per core, for GPU memory at most one per 8 MiB of "
      "--staging");
  add("heartbeat-interval", config.heartbeat_interval, "Seconds between signs of life of a member");
  add("heartbeat-timeout", config.heartbeat_timeout, "Seconds of silence after which a rank is lost");
  add("log-level", config.log_level, "trace, debug, info, warn, error or off");
  app.add_option("--ready-fd", config.ready_fd,
                 "Descriptor that is written one byte once the group is complete");
}

absl::Status CheckConfig(const Config& config) {
  if (config.world_size == 0 || config.rank >= config.world_size) {
    return Invalid(fmt::format("checking --rank {} of --world-size {}: ranks count from 0 to "
                               "world-size - 1",
                               config.rank, config.world_size));
  }
  if (config.world_size > kMaxWorldSize) {
    return Invalid(fmt::format("checking --world-size {}: at most {}", config.world_size,
                               kMaxWorldSize));
  }
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
  if (config.memory != "auto" && config.memory != "host" && config.memory != "cuda") {
    return Invalid(fmt::format("checking --memory {}: use auto, host or cuda", config.memory));
  }
  if (config.huge_pages != "auto" && config.huge_pages != "off") {
    return Invalid(fmt::format("checking --huge-pages {}: use auto or off", config.huge_pages));
  }
  CKPTD_RETURN_IF_ERROR(ParseReaderPolicy(config.reader).status());
  CKPTD_RETURN_IF_ERROR(ParseReadWay(config.read).status());
  CKPTD_RETURN_IF_ERROR(ParseCommChoice(config.comm).status());
  if (config.comm == "nccl" && config.memory == "host") {
    return Invalid("checking --comm nccl: NCCL carries bytes between GPUs, and --memory is host; "
                   "leave one of the two out");
  }
  if (config.peer_auth != "required" && config.peer_auth != "none") {
    return Invalid(fmt::format("checking --peer-auth {}: use required or none", config.peer_auth));
  }
  if (config.local_size == 0) return Invalid("checking --local-size: at least 1");
  const size_t colon = config.rendezvous.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == config.rendezvous.size()) {
    return Invalid(fmt::format("checking --rendezvous {}: write host:port", config.rendezvous));
  }
  const bool beats = config.heartbeat_interval >= 0.01 &&
                     config.heartbeat_timeout >= 2 * config.heartbeat_interval &&
                     config.heartbeat_timeout <= 3600;
  if (!beats) {
    return Invalid(fmt::format("checking --heartbeat-timeout {}: it must be at least twice "
                               "--heartbeat-interval {} (0.01 or more) and at most 3600",
                               config.heartbeat_timeout, config.heartbeat_interval));
  }
  LogLevel level = LogLevel::kInfo;
  if (!ParseLogLevel(config.log_level, level)) {
    return Invalid(fmt::format("checking --log-level {}: use trace, debug, info, warn, error or "
                               "off",
                               config.log_level));
  }
  CKPTD_RETURN_IF_ERROR(ParseBytes(config.segment_bytes).status());
  CKPTD_RETURN_IF_ERROR(ParseBytes(config.staging).status());
  CKPTD_RETURN_IF_ERROR(ParseShare(config.memory_budget, 1).status());
  if (config.idle != "keep" && config.idle != "release") {
    return Invalid(fmt::format("checking --idle {}: use keep or release", config.idle));
  }
  CKPTD_ASSIGN_OR_RETURN(const uint64_t host_tier, ParseShare(config.host_tier, 100));
  if (host_tier > 0 && config.memory == "host") {
    return Invalid("checking --host-tier: it lies behind a GPU's memory, and --memory is host; "
                   "leave one of the two out");
  }
  return ParseShare(config.arena, 1).status();
}

std::map<std::string, std::string> Describe(const Config& config) {
  return {{"job", config.job},
          {"rank", std::to_string(config.rank)},
          {"world-size", std::to_string(config.world_size)},
          {"local-size", std::to_string(config.local_size)},
          {"run-dir", config.run_dir},
          {"rendezvous", config.rendezvous},
          {"advertise", config.advertise},
          {"host-id", config.host_id},
          {"peer-auth", config.peer_auth},
          {"group-key-file", config.group_key_file},
          {"tls-cert", config.tls_cert},
          {"tls-key", config.tls_key},
          {"tls-ca", config.tls_ca},
          {"tls-name", config.tls_name},
          {"reader", config.reader},
          {"comm", config.comm},
          {"nccl-library", config.nccl_library},
          {"memory", config.memory},
          {"device", config.device},
          {"staging", config.staging},
          {"idle", config.idle},
          {"host-tier", config.host_tier},
          {"memory-budget", config.memory_budget},
          {"arena", config.arena},
          {"segment-bytes", config.segment_bytes},
          {"huge-pages", config.huge_pages},
          {"numa", config.numa},
          {"read", config.read},
          {"reader-threads", std::to_string(config.reader_threads)},
          {"heartbeat-interval", fmt::format("{}", config.heartbeat_interval)},
          {"heartbeat-timeout", fmt::format("{}", config.heartbeat_timeout)},
          {"log-level", config.log_level}};
}

SocketPaths PathsOf(const Config& config) {
  SocketPaths paths;
  paths.directory = config.run_dir + "/" + config.job;
  const std::string stem = fmt::format("{}/rank-{}", paths.directory, config.rank);
  paths.workload = stem + ".sock";
  paths.admin = stem + ".admin.sock";
  paths.fd = stem + ".fd.sock";
  paths.memory = stem + ".mem.sock";
  return paths;
}

absl::Status MakeRunDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(directory).parent_path(), error);
  if (!error && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    const absl::Status status = ErrnoStatus(error.value(), "making the run directory " + directory);
    const bool passes = status.code() == absl::StatusCode::kResourceExhausted;  // a full disk
    return MakeError(status.code(), passes ? ReasonOf(status) : reason::kConfigInvalid,
                     MessageOf(status) + "; choose another one with --run-dir (CKPTD_RUN_DIR)");
  }
  struct stat info = {};
  if (::lstat(directory.c_str(), &info) != 0) {
    return ErrnoStatus(errno, "looking at the run directory " + directory);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     fmt::format("using the run directory {}: it must be a directory of this user "
                                 "that nobody else can enter (mode 0700); remove it, or choose "
                                 "another --run-dir",
                                 directory));
  }
  return absl::OkStatus();
}

}  // namespace ckptd

#include "server/daemon/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <variant>

#include <fmt/format.h>

namespace ckptd {
namespace {

struct Setting {
  const char* key;
  std::variant<std::string Config::*, uint32_t Config::*, double Config::*> value;
  const char* help;
  bool is_list = false;  // may be given several times, or with commas
};

// All settings, in the order of the help.
const Setting kSettings[] = {
    {"job", &Config::job, "Name of the job; daemons of other jobs are refused"},
    {"rank", &Config::rank, "Rank of this daemon in the group; rank 0 reads storage and leads"},
    {"world-size", &Config::world_size, "Daemons in the group, one per trainer process"},
    {"local-size", &Config::local_size, "Daemons of the group on this host; they share its memory"},
    {"run-dir", &Config::run_dir,
     "Directory of the sockets; each job has a folder in it, mode 0700 (0750 with allow-gid)"},
    {"allow-gid", &Config::allow_gid,
     "Group (name or number) whose members may load and attach, too, when they run as another user: "
     "what they could read themselves, or pass. It gets the job's folder and the sockets for "
     "trainers; the daemon must be a member. Administration stays with the daemon's user and root"},
    {"allow-uid", &Config::allow_uid,
     "With allow-gid: of its members these users alone (names or numbers; several with commas)", true},
    {"allow-root", &Config::allow_root,
     "Folder that every source must lie in, for all users; links that lead out are refused. Several "
     "times, or with commas (anywhere if not given)", true},
    {"rendezvous", &Config::rendezvous, "host:port on which rank 0 listens for the others"},
    {"peer-port", &Config::peer_port,
     "First TCP port on which the daemons of a host listen for the others: each takes this one "
     "plus its number on the host (rank modulo local-size), as for a firewall; 0: any free ones. "
     "Rank 0 listens at --rendezvous"},
    {"health-port", &Config::health_port,
     "TCP port, or host:port, on which grpc.health.v1 alone is served, in plain text, for probes "
     "of Kubernetes; launch serves it for all daemons of its host; 0: none"},
    {"metrics", &Config::metrics,
     "Where GET /metrics has metrics for Prometheus, in plain text for everybody who reaches it: a "
     "port of 127.0.0.1, or host:port (0.0.0.0:9464 for all interfaces); launch serves those of all "
     "daemons of its host there; socket: at a Unix socket of each daemon in its run directory; 0: "
     "nowhere"},
    {"advertise", &Config::advertise,
     "Host name or address under which the others reach this daemon (found out if not given)"},
    {"host-id", &Config::host_id,
     "Name of this host; daemons of equal names share memory instead of sending bytes (the "
     "kernel's boot id if not given)"},
    {"peer-auth", &Config::peer_auth,
     "How daemons of the group know each other: required, by group key or certificate, over "
     "encrypted connections; none lets everybody in who reaches the peer port"},
    {"group-key-file", &Config::group_key_file,
     "File with the group key, 32 characters or more and the same for all daemons "
     "(CKPTD_GROUP_KEY may hold the key itself); launch makes one for a group on one host"},
    {"tls-cert", &Config::tls_cert,
     "In place of a group key: certificate of this daemon, a PEM file; both sides show theirs"},
    {"tls-key", &Config::tls_key, "Private key of tls-cert, a PEM file"},
    {"tls-ca", &Config::tls_ca,
     "Authorities that sign the certificates of all daemons, a PEM file"},
    {"tls-name", &Config::tls_name,
     "Name that every daemon's certificate bears (the address it is reached by if not given)"},
    {"reader", &Config::reader,
     "Who reads storage: rank0 for all, per_node the lowest rank of each host for its host, "
     "all ranks equal parts for all; rank 0's setting counts"},
    {"comm", &Config::comm,
     "How bytes reach the GPUs of other ranks: auto writes to those it can map and leaves the "
     "others to NCCL (with readers on several hosts that share the work: all), or to streams "
     "where there is none or a client holds a shard when the load is prepared; host never takes "
     "NCCL, nccl always does; rank 0's setting counts"},
    {"nccl-library", &Config::nccl_library,
     "The libnccl.so.2 to open (the system's if not given, else that of the Python "
     "environment)"},
    {"memory", &Config::memory,
     "Where shards live: cuda in the memory of a GPU, host in the machine's; auto takes a GPU "
     "if there is one"},
    {"device", &Config::device,
     "The GPU: its UUID (GPU-..., MIG-...), its number among the visible ones, or auto: the "
     "daemons of a host take them in turn"},
    {"staging", &Config::staging,
     "Pinned host memory that bytes for GPUs go through; needed once, however large the "
     "shards are"},
    {"idle", &Config::idle,
     "What stays on GPUs while no load runs: keep the context, the staging memory and the "
     "kernels, so that a load begins at once, or release all but the shards themselves"},
    {"host-tier", &Config::host_tier,
     "Host memory for pristine copies of shards that trainers take over (EXCLUSIVE) from the "
     "GPU, so that they come back without storage: a size, or a share of what is available at "
     "start, divided among the daemons; 0: none"},
    {"memory-budget", &Config::memory_budget,
     "Most memory for shards: a size (16GiB), or a share of what is available at start, divided "
     "among the daemons that share it (not of a GPU that is the only one they see)"},
    {"arena", &Config::arena,
     "Memory faulted in the background at start and reused by loads, so that the first one does "
     "not wait for the system: auto takes what the job loaded when it ran last, else a share of "
     "what is available, and gives back what is not needed; a size, or a share of the budget; 0 "
     "lets it grow with the first load. At least a tenth of the machine is left to others"},
    {"arena-idle", &Config::arena_idle,
     "With --arena auto: seconds without a load after which memory that no checkpoint needs goes "
     "back to the system; 0 keeps it. It goes at once where the machine runs short of memory, "
     "and by `ckptctl trim`"},
    {"segment-bytes", &Config::segment_bytes,
     "Size of the arena's memfd segments, a multiple of 2MiB"},
    {"huge-pages", &Config::huge_pages, "Gather the arena into huge pages: auto or off"},
    {"numa", &Config::numa,
     "NUMA node of host memory, on machines that have several: auto takes that of the cores "
     "this daemon may run on, or, where they are of several, gives the ranks of a host the "
     "nodes in blocks; a number; or off"},
    {"read", &Config::read,
     "How storage is read. map: through a mapping of the page cache. buffer: through copies of "
     "the page cache. direct: past the page cache (O_DIRECT). auto picks one per MiB: direct for "
     "what is not cached, else map, or buffer for GPU memory and where mapping is slow"},
    {"reader-threads", &Config::reader_threads,
     "Threads that read storage; 0 means one per core, for GPU memory at most one per 8 MiB "
     "of --staging"},
    {"heartbeat-interval", &Config::heartbeat_interval,
     "Seconds between signs of life of a member"},
    {"heartbeat-timeout", &Config::heartbeat_timeout,
     "Seconds of silence after which a rank is lost"},
    {"load", &Config::load,
     "Checkpoint that is loaded as soon as the group is complete, while trainers still start: a "
     "file, an index or a folder of any format that loads. Trainers that ask for what it comes to "
     "find it resident"},
    {"layout", &Config::layout,
     "How --load is laid out: fsdp:N, hsdp:RxS, replicate:N, a layout file or its JSON (fsdp over "
     "all ranks if not given)"},
    {"dtype", &Config::dtype,
     "Floating tensors of --load are cast to this: F16, BF16, F32 or F64 (to none if not given)"},
    {"load-mode", &Config::load_mode,
     "How trainers will hold --load: shared (also for private), exclusive, or auto, which is "
     "exclusive in a GPU's memory, as load_into has it for what is trained"},
    {"ready-when", &Config::ready_when,
     "When a daemon is ready, for launch, --ready-fd and health checks: group, once the group is "
     "complete, or loaded, once --load is loaded, too"},
    {"keeper", &Config::keeper,
     "Socket of the process that holds shards and leases while a daemon is away (`ckptd keep`), so "
     "that the next one has them without reading; systemd: that unit's own store of descriptors; "
     "launch starts a process if nothing is given; none: nothing is kept"},
    {"slab-dir", &Config::slab_dir,
     "Folder in memory (a tmpfs, an emptyDir with medium: Memory) where shards of host memory are "
     "files, so that they survive when all processes and containers are restarted; leases do not"},
    {"log-level", &Config::log_level, "trace, debug, info, warn, error or off"},
};

std::string VariableOf(std::string key) {
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  return "CKPTD_" + key;
}

}  // namespace

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
  for (const Setting& setting : kSettings) {
    const std::string key = setting.key;
    const auto add = [&](auto member) {
      CLI::Option* const option = app.add_option("--" + key, config.*member, setting.help)
                                      ->envname(VariableOf(key))
                                      ->capture_default_str();
      if (setting.is_list) option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::Join);
    };
    std::visit(add, setting.value);
  }
  app.add_option("--ready-fd", config.ready_fd,
                 "Descriptor that is written 1 once the daemon is ready; with --ready-when loaded it is "
                 "written g before, once the group is complete, and 0 where the load failed");
}

std::map<std::string, std::string> Describe(const Config& config) {
  std::map<std::string, std::string> texts;
  for (const Setting& setting : kSettings) {
    texts[setting.key] = std::visit(
        [&](auto member) { return fmt::format("{}", config.*member); }, setting.value);
  }
  return texts;
}

}  // namespace ckptd

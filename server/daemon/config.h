// Configuration of one daemon: every key and its default. Flags, CKPTD_* variables and the config
// file use the same keys.
#ifndef CKPTD_SERVER_DAEMON_CONFIG_H_
#define CKPTD_SERVER_DAEMON_CONFIG_H_

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <string>

#include "server/daemon/environment.h"

namespace ckptd {

inline constexpr char kNoKeeper[] = "none";
inline constexpr char kSystemdKeeper[] = "systemd";
inline constexpr uint16_t kDefaultPort = 29511;

struct Config {
  std::string job = "default";
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_size = 1;             // daemons on this host, which share its memory
  std::string run_dir;                 // sockets are in run_dir/job
  std::string allow_gid;               // access_settings.h reads these three
  std::string allow_uid;
  std::string allow_root;
  std::string rendezvous;              // host:port of rank 0's peer server
  uint32_t peer_port = 0;              // of this host's first daemon; 0: any free one
  std::string health_port = "0";       // a port or host:port for grpc.health.v1; "0": none
  std::string metrics = "0";           // MetricsAddress reads it
  std::string advertise;               // host name by which peers reach this daemon
  std::string host_id;                 // daemons with the same one share memory; empty: the boot id
  std::string peer_auth = "required";  // or "none": anybody may call the peer port
  std::string group_key_file;          // a file with a text that all daemons of the group share
  std::string tls_cert;                // PEM files instead of the group key; all three or none
  std::string tls_key;
  std::string tls_ca;
  std::string tls_name;     // the name in every certificate; empty: the address of the connection
  std::string reader = "rank0";
  std::string comm = "auto";
  std::string nccl_library;  // empty: search
  std::string memory = "auto";
  std::string device = "auto";
  std::string staging = "128MiB";
  std::string idle = "keep";
  std::string host_tier = "0";
  std::string memory_budget = "80%";
  std::string arena = "auto";
  double arena_idle = 300;  // seconds
  std::string segment_bytes = "256MiB";
  std::string huge_pages = "auto";
  std::string numa = "auto";
  std::string read = "auto";
  uint32_t reader_threads = 0;
  double heartbeat_interval = 1.0;  // seconds
  double heartbeat_timeout = 5.0;
  std::string slab_dir;  // memory-backed folder that has shards as files; empty: none
  std::string keeper;  // socket of `ckptd keep`; empty or "none": nothing outlives the daemon
  std::string log_level = "info";
  std::string load;    // loaded once the group is complete; empty: nothing
  std::string layout;  // for `load`; empty: fsdp over all ranks
  std::string dtype;   // type to which floating tensors of `load` are cast; empty: none
  std::string load_mode = "auto";
  std::string ready_when = "group";
  // A descriptor to which '1' is written when the daemon is ready. If that includes a load, 'g'
  // is written before, when the group is complete, and '0' instead of '1' if the load has failed.
  int ready_fd = -1;
};

// Defaults that depend on the environment: job facts, the default run directory.
Config DefaultConfig(const EnvironmentReader& read);
// Declares every key as a flag with its CKPTD_* variable. `config` must outlive app.
void AddConfigFlags(CLI::App& app, Config& config);
// Key -> value, as info and `ckptd config` show it.
std::map<std::string, std::string> Describe(const Config& config);

// $CKPTD_RUN_DIR, $XDG_RUNTIME_DIR/ckptd, /run/ckptd for root, ~/.ckptd/run.
std::string DefaultRunDir(const EnvironmentReader& read);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_CONFIG_H_

// What torchrun and Slurm tell a process about its place in its job. Pure.
#ifndef CKPTD_SERVER_DAEMON_ENVIRONMENT_H_
#define CKPTD_SERVER_DAEMON_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ckptd {

// Reads one variable. Nullopt if it is unset or empty. Tests pass their own function.
using EnvironmentReader = std::function<std::optional<std::string>(const std::string&)>;
std::optional<std::string> ReadEnvironment(const std::string& name);

// Facts that a launcher has put into the environment. Unset if it has not.
struct JobFacts {
  std::optional<uint32_t> rank;         // RANK, SLURM_PROCID
  std::optional<uint32_t> world_size;   // WORLD_SIZE, SLURM_NTASKS
  std::optional<uint32_t> local_size;   // LOCAL_WORLD_SIZE, SLURM_NTASKS_PER_NODE, SLURM_GPUS_ON_NODE
  std::optional<uint32_t> nodes;        // GROUP_WORLD_SIZE, SLURM_JOB_NUM_NODES, SLURM_NNODES
  std::optional<uint32_t> node_rank;    // GROUP_RANK, SLURM_NODEID
  std::optional<std::string> leader;    // MASTER_ADDR, first host of SLURM_JOB_NODELIST
  std::optional<std::string> job;       // SLURM_JOB_ID
};
JobFacts ReadJobFacts(const EnvironmentReader& read);

// First host of a Slurm node list: "gpu[07-09,12],x1" gives "gpu07".
std::string FirstHost(const std::string& node_list);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_ENVIRONMENT_H_

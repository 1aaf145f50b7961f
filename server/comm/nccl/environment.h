// Chooses the NCCL_* variables of the daemon. A pod's environment is made for the trainer:
// NCCL_COMM_ID would send the daemons to the trainer's rank 0, NCCL_COMM_BLOCKING would disable
// their deadlines. So the daemon keeps only those that describe the machine and its network.
// CKPTD_NCCL_<NAME> is passed on as NCCL_<NAME>.
#ifndef CKPTD_SERVER_COMM_NCCL_ENVIRONMENT_H_
#define CKPTD_SERVER_COMM_NCCL_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace ckptd {

struct NcclEnvironment {
  std::map<std::string, std::string> kept;  // unchanged
  // Variables to set: those passed on from CKPTD_NCCL_<NAME>, and the daemon's own.
  // NCCL_COMM_BLOCKING=0 cannot be overridden. CKPTD_NCCL_<NAME> overrides
  //   NCCL_RAS_ENABLE=0   its listener is the trainer's: both share the port of a pod
  //   NCCL_NVLS_ENABLE=0  it takes memory, and ckptd reduces nothing
  //   NCCL_MULTI_RANK_GPU_ENABLE=1  since 2.30: daemons may share a GPU
  std::map<std::string, std::string> set;
  std::vector<std::string> dropped;  // names to unset

  // One line for the log.
  std::string Text() const;
};

// Sorts an environment (as environ: "NAME=value", null at the end). Files that NCCL reads by
// itself (/etc/nccl.conf, $NCCL_CONF_FILE) can only add variables that are not set.
NcclEnvironment CleanNcclEnvironment(const char* const* environment);

// Applies it to this process. setenv is not thread-safe, so call this before any thread starts,
// and before NCCL is opened.
void ApplyNcclEnvironment(const NcclEnvironment& environment);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_ENVIRONMENT_H_

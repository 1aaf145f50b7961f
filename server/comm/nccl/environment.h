// NCCL is told much by its environment, and a pod's environment is made for the trainer:
// NCCL_COMM_ID would send the daemons to the trainer's rank 0, NCCL_COMM_BLOCKING would
// take their deadlines away. So the daemon leaves of NCCL_* only what describes the
// machine and its network. CKPTD_NCCL_<NAME> is passed on as NCCL_<NAME>.
#ifndef CKPTD_SERVER_COMM_NCCL_ENVIRONMENT_H_
#define CKPTD_SERVER_COMM_NCCL_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace ckptd {

struct NcclEnvironment {
  std::map<std::string, std::string> kept;  // as they are
  // To set: passed on from CKPTD_NCCL_<NAME>, and what the daemon itself says, which
  // nobody overrides for NCCL_COMM_BLOCKING=0, but CKPTD_NCCL_<NAME> for
  //   NCCL_RAS_ENABLE=0   its listener is the trainer's: both share the port of a pod
  //   NCCL_NVLS_ENABLE=0  it takes memory, and ckptd reduces nothing
  //   NCCL_MULTI_RANK_GPU_ENABLE=1  since 2.30: daemons may share a GPU
  std::map<std::string, std::string> set;
  std::vector<std::string> dropped;  // names to unset

  // One line for the log.
  std::string Text() const;
};

// What becomes of an environment (as environ: "NAME=value", null at the end). Files that
// NCCL reads by itself (/etc/nccl.conf, $NCCL_CONF_FILE) only add what is not set.
NcclEnvironment CleanNcclEnvironment(const char* const* environment);

// Makes it so in this process. setenv is not thread-safe: call it before any thread is
// started, and before NCCL is opened.
void ApplyNcclEnvironment(const NcclEnvironment& environment);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_ENVIRONMENT_H_

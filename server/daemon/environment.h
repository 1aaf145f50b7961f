// The place of a process in its job, as torchrun, Slurm, MPI and the job frameworks of
// Kubernetes tell it. Pure.
#ifndef CKPTD_SERVER_DAEMON_ENVIRONMENT_H_
#define CKPTD_SERVER_DAEMON_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

namespace ckptd {

// Reads one variable. Nullopt if it is unset or empty. Tests pass their own function.
using EnvironmentReader = std::function<std::optional<std::string>(const std::string&)>;
std::optional<std::string> ReadEnvironment(const std::string& name);

// One fact about a process's place in its job.
enum class JobFact : uint8_t { kRank, kWorldSize, kLocalSize, kNodes, kNodeRank, kLeader, kJob };

// A variable that tells a fact, and who sets it.
struct FactSource {
  JobFact fact;
  const char* variable;
  const char* set_by;
};
// All of them. The first that is set counts for its fact.
std::span<const FactSource> FactSources();
// The table for people: a line for each fact of `ckptd launch`, with its variables.
std::string DescribeFactSources();

// Facts that a launcher has put into the environment, by FactSources(). Unset if it has not.
struct JobFacts {
  std::optional<uint32_t> rank;
  std::optional<uint32_t> world_size;
  std::optional<uint32_t> local_size;  // ranks of this node
  std::optional<uint32_t> nodes;
  std::optional<uint32_t> node_rank;
  // It is the index of a Job's pod. Such a Job is one group, or as many groups of one pod.
  bool node_rank_is_index = false;
  std::optional<std::string> leader;  // host of rank 0
  std::optional<std::string> job;
  // "PET_NNODES=1:4" for each fact whose variable is set and is no number. That fact is unset.
  std::map<JobFact, std::string> unclear;
};
JobFacts ReadJobFacts(const EnvironmentReader& read);

// First host of a Slurm node list: "gpu[07-09,12],x1" gives "gpu07".
std::string FirstHost(const std::string& node_list);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_ENVIRONMENT_H_

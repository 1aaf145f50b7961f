#include "server/daemon/environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace ckptd {
namespace {

constexpr char kJobIndex[] = "JOB_COMPLETION_INDEX";
// A manifest takes these two from the labels that JobSet gives its pods.
constexpr char kJobSetName[] = "JOBSET_NAME";
constexpr char kReplicatedJob[] = "JOBSET_REPLICATEDJOB_NAME";

constexpr char kMpi[] = "MPI";

// torchrun sets variables for the trainers that it starts. Those with PET_ are its arguments, which
// Kubeflow sets. RANK counts pods in a PyTorchJob and processes elsewhere, and WORLD_SIZE either, by
// Kubeflow's version. So only `ckptd run` reads them, which is one process.
constexpr FactSource kFactSources[] = {
    {JobFact::kRank, "RANK", "torchrun"},
    {JobFact::kRank, "SLURM_PROCID", "Slurm"},
    {JobFact::kRank, "OMPI_COMM_WORLD_RANK", kMpi},
    {JobFact::kRank, "PMI_RANK", kMpi},
    {JobFact::kWorldSize, "WORLD_SIZE", "torchrun"},
    {JobFact::kWorldSize, "SLURM_NTASKS", "Slurm"},
    {JobFact::kWorldSize, "OMPI_COMM_WORLD_SIZE", kMpi},
    {JobFact::kWorldSize, "PMI_SIZE", kMpi},
    {JobFact::kLocalSize, "LOCAL_WORLD_SIZE", "torchrun"},
    {JobFact::kLocalSize, "PET_NPROC_PER_NODE", "Kubeflow"},
    {JobFact::kLocalSize, "SLURM_NTASKS_PER_NODE", "Slurm"},
    {JobFact::kLocalSize, "SLURM_GPUS_ON_NODE", "Slurm"},
    {JobFact::kLocalSize, "OMPI_COMM_WORLD_LOCAL_SIZE", kMpi},
    {JobFact::kLocalSize, "MPI_LOCALNRANKS", kMpi},
    {JobFact::kNodes, "GROUP_WORLD_SIZE", "torchrun"},
    {JobFact::kNodes, "PET_NNODES", "Kubeflow"},
    {JobFact::kNodes, "LWS_GROUP_SIZE", "LeaderWorkerSet"},
    {JobFact::kNodes, "SLURM_JOB_NUM_NODES", "Slurm"},
    {JobFact::kNodes, "SLURM_NNODES", "Slurm"},
    {JobFact::kNodeRank, "GROUP_RANK", "torchrun"},
    {JobFact::kNodeRank, "PET_NODE_RANK", "Kubeflow"},
    {JobFact::kNodeRank, "LWS_WORKER_INDEX", "LeaderWorkerSet"},
    {JobFact::kNodeRank, kJobIndex, "Job, JobSet"},
    {JobFact::kNodeRank, "SLURM_NODEID", "Slurm"},
    {JobFact::kLeader, "MASTER_ADDR", "torchrun, Kubeflow"},
    {JobFact::kLeader, "PET_MASTER_ADDR", "Kubeflow"},
    {JobFact::kLeader, "LWS_LEADER_ADDRESS", "LeaderWorkerSet"},
    {JobFact::kLeader, kJobSetName, "JobSet"},
    {JobFact::kLeader, "SLURM_JOB_NODELIST", "Slurm"},
    {JobFact::kLeader, "SLURM_NODELIST", "Slurm"},
    {JobFact::kJob, "SLURM_JOB_ID", "Slurm"},
};

struct Told {
  const FactSource* source = nullptr;
  std::string text;
};

// The first source of a fact that is set.
std::optional<Told> FirstTold(const EnvironmentReader& read, JobFact fact) {
  for (const FactSource& source : kFactSources) {
    if (source.fact != fact) continue;
    if (auto text = read(source.variable)) return Told{&source, *std::move(text)};
  }
  return std::nullopt;
}

// Slurm writes "4(x2)" for 4 tasks on each of 2 nodes. The first number counts.
std::optional<uint32_t> NumberIn(const std::string& text) {
  uint32_t value = 0;
  const char* const all = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), all, value);
  if (error == std::errc() && (end == all || *end == '(')) return value;
  return std::nullopt;
}

// JobSet names pods NAME-JOB-0-0, and its service NAME.
std::optional<std::string> LeaderIn(const Told& told, const std::optional<std::string>& job) {
  const std::string_view variable = told.source->variable;
  if (variable.ends_with("NODELIST")) return FirstHost(told.text);
  if (variable != kJobSetName) return told.text;
  if (!job.has_value()) return std::nullopt;
  return fmt::format("{}-{}-0-0.{}", told.text, *job, told.text);
}

// MPI counts processes, not nodes. It starts as many on each, in this order.
void CountMpiNodes(const EnvironmentReader& read, JobFacts& facts) {
  const auto told = FirstTold(read, JobFact::kWorldSize);
  const bool mpi = told.has_value() && told->source->set_by == std::string_view(kMpi);
  if (!mpi || facts.nodes.has_value() || facts.local_size.value_or(0) == 0) return;
  facts.nodes = facts.world_size.value_or(1) / *facts.local_size;
  if (!facts.node_rank.has_value() && facts.rank.has_value()) {
    facts.node_rank = *facts.rank / *facts.local_size;
  }
}

std::string NameOf(const FactSource& source) {
  const std::string_view variable = source.variable;
  return fmt::format("{}{}{}", variable, variable == kJobSetName ? "+" : "",
                     variable == kJobSetName ? kReplicatedJob : "");
}

}  // namespace

std::optional<std::string> ReadEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string FirstHost(const std::string& node_list) {
  std::string host;
  size_t at = 0;
  for (;;) {
    const size_t end = node_list.find_first_of(",[", at);
    host += node_list.substr(at, end - at);
    if (end == std::string::npos || node_list[end] == ',') return host;
    const size_t stop = node_list.find_first_of(",-]", end + 1);
    const size_t close = node_list.find(']', end + 1);
    if (close == std::string::npos) return host;
    host += node_list.substr(end + 1, stop - end - 1);
    at = close + 1;  // names may have several ranges: "rack[1-2]n[3-4]"
  }
}

std::span<const FactSource> FactSources() { return kFactSources; }

std::string DescribeFactSources() {
  constexpr std::pair<JobFact, const char*> kLaunched[] = {{JobFact::kLocalSize, "--nproc"},
                                                           {JobFact::kNodes, "--nnodes"},
                                                           {JobFact::kNodeRank, "--node-rank"},
                                                           {JobFact::kLeader, "--rendezvous"}};
  constexpr size_t kColumns = 96;
  std::string out;
  for (const auto& [fact, flag] : kLaunched) {
    std::string line = fmt::format("  {:<13}", flag);
    for (const FactSource& source : kFactSources) {
      if (source.fact != fact) continue;
      const std::string word = fmt::format(" {} ({})", NameOf(source), source.set_by);
      if (line.size() + word.size() > kColumns) {
        out += std::exchange(line, std::string(15, ' ')) + "\n";
      }
      line += word;
    }
    out += line + "\n";
  }
  return out;
}

JobFacts ReadJobFacts(const EnvironmentReader& read) {
  JobFacts facts;
  const std::pair<JobFact, std::optional<uint32_t>*> numbers[] = {
      {JobFact::kRank, &facts.rank},           {JobFact::kWorldSize, &facts.world_size},
      {JobFact::kLocalSize, &facts.local_size}, {JobFact::kNodes, &facts.nodes},
      {JobFact::kNodeRank, &facts.node_rank}};
  for (const auto& [fact, number] : numbers) {
    const auto told = FirstTold(read, fact);
    if (!told.has_value()) continue;
    *number = NumberIn(told->text);
    if (number->has_value()) continue;
    facts.unclear[fact] = fmt::format("{}={}", told->source->variable, told->text);
  }
  CountMpiNodes(read, facts);
  const auto index = FirstTold(read, JobFact::kNodeRank);
  facts.node_rank_is_index =
      index.has_value() && index->source->variable == std::string_view(kJobIndex);
  if (const auto leader = FirstTold(read, JobFact::kLeader)) {
    facts.leader = LeaderIn(*leader, read(kReplicatedJob));
  }
  if (auto job = FirstTold(read, JobFact::kJob)) facts.job = std::move(job->text);
  return facts;
}

}  // namespace ckptd

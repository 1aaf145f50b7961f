#include "server/daemon/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"

namespace ckptd {
namespace {

using Variables = std::map<std::string, std::string>;

JobFacts FactsFrom(const Variables& variables) {
  return ReadJobFacts([&](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  });
}

TEST(JobFacts, AnEmptyEnvironmentSaysNothing) {
  const JobFacts facts = FactsFrom({});
  EXPECT_FALSE(facts.rank.has_value());
  EXPECT_FALSE(facts.world_size.has_value());
  EXPECT_FALSE(facts.leader.has_value());
  EXPECT_FALSE(facts.job.has_value());
}

TEST(JobFacts, ReadsWhatTorchrunSets) {
  const JobFacts facts = FactsFrom({{"RANK", "5"},
                                    {"WORLD_SIZE", "16"},
                                    {"LOCAL_WORLD_SIZE", "8"},
                                    {"GROUP_RANK", "1"},
                                    {"GROUP_WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(facts.rank, 5u);
  EXPECT_EQ(facts.world_size, 16u);
  EXPECT_EQ(facts.local_size, 8u);
  EXPECT_EQ(facts.node_rank, 1u);
  EXPECT_EQ(facts.nodes, 2u);
  EXPECT_EQ(facts.leader, "node0");
  EXPECT_EQ(facts.job, std::nullopt);
}

TEST(JobFacts, ReadsWhatSlurmSets) {
  const JobFacts facts = FactsFrom({{"SLURM_PROCID", "3"},
                                    {"SLURM_NTASKS", "8"},
                                    {"SLURM_NTASKS_PER_NODE", "4"},
                                    {"SLURM_JOB_NUM_NODES", "2"},
                                    {"SLURM_NODEID", "0"},
                                    {"SLURM_JOB_NODELIST", "gpu[07-08]"},
                                    {"SLURM_JOB_ID", "991"}});
  EXPECT_EQ(facts.rank, 3u);
  EXPECT_EQ(facts.world_size, 8u);
  EXPECT_EQ(facts.local_size, 4u);
  EXPECT_EQ(facts.nodes, 2u);
  EXPECT_EQ(facts.node_rank, 0u);
  EXPECT_EQ(facts.leader, "gpu07");
  EXPECT_EQ(facts.job, "991");
}

TEST(JobFacts, TorchrunInsideOfSlurmWins) {
  const JobFacts facts = FactsFrom({{"RANK", "5"}, {"SLURM_PROCID", "0"}, {"MASTER_ADDR", "a"},
                                    {"SLURM_JOB_NODELIST", "b"}});
  EXPECT_EQ(facts.rank, 5u);
  EXPECT_EQ(facts.leader, "a");
}

TEST(JobFacts, ReadsTheTasksOfANodeWithTheirRepetition) {
  EXPECT_EQ(FactsFrom({{"SLURM_NTASKS_PER_NODE", "4(x2)"}}).local_size, 4u);
}

TEST(JobFacts, CountsTheNodesOfMpiFromItsProcesses) {
  const std::vector<Variables> told = {{{"OMPI_COMM_WORLD_RANK", "11"},
                                        {"OMPI_COMM_WORLD_SIZE", "16"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}},
                                       {{"PMI_RANK", "11"}, {"PMI_SIZE", "16"}, {"MPI_LOCALNRANKS", "8"}}};
  for (const Variables& variables : told) {
    const JobFacts facts = FactsFrom(variables);
    EXPECT_EQ(facts.rank, 11u);
    EXPECT_EQ(facts.local_size, 8u);
    EXPECT_EQ(facts.nodes, 2u);
    EXPECT_EQ(facts.node_rank, 1u);
  }
  EXPECT_EQ(FactsFrom({{"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}}).nodes, std::nullopt);
  EXPECT_EQ(FactsFrom({{"OMPI_COMM_WORLD_SIZE", "16"}}).nodes, std::nullopt);
}

TEST(JobFacts, ReadsWhatLeaderWorkerSetSets) {
  const JobFacts facts = FactsFrom({{"LWS_LEADER_ADDRESS", "llama-0.llama.ml"},
                                    {"LWS_GROUP_SIZE", "4"},
                                    {"LWS_WORKER_INDEX", "3"}});
  EXPECT_EQ(facts.nodes, 4u);
  EXPECT_EQ(facts.node_rank, 3u);
  EXPECT_EQ(facts.leader, "llama-0.llama.ml");
  EXPECT_FALSE(facts.node_rank_is_index);
}

TEST(JobFacts, ReadsTorchrunsArgumentsOfKubeflow) {
  const JobFacts facts = FactsFrom({{"PET_NNODES", "2"},
                                    {"PET_NPROC_PER_NODE", "8"},
                                    {"PET_NODE_RANK", "1"},
                                    {"PET_MASTER_ADDR", "job-node-0-0.job"},
                                    {"PET_MASTER_PORT", "29400"}});
  EXPECT_EQ(facts.nodes, 2u);
  EXPECT_EQ(facts.local_size, 8u);
  EXPECT_EQ(facts.node_rank, 1u);
  EXPECT_EQ(facts.leader, "job-node-0-0.job");
}

TEST(JobFacts, APyTorchJobIsReadByItsArgumentsForItsRankCountsPods) {
  const JobFacts facts = FactsFrom({{"RANK", "1"},
                                    {"WORLD_SIZE", "16"},
                                    {"MASTER_ADDR", "llama-master-0"},
                                    {"PET_NNODES", "2"},
                                    {"PET_NPROC_PER_NODE", "8"},
                                    {"PET_NODE_RANK", "1"}});
  EXPECT_EQ(facts.nodes, 2u);
  EXPECT_EQ(facts.local_size, 8u);
  EXPECT_EQ(facts.node_rank, 1u);
  EXPECT_EQ(facts.leader, "llama-master-0");
}

TEST(JobFacts, ThePodOfAnIndexedJobIsItsIndex) {
  const JobFacts facts = FactsFrom({{"JOB_COMPLETION_INDEX", "2"}, {"PET_NNODES", "4"}});
  EXPECT_EQ(facts.node_rank, 2u);
  EXPECT_TRUE(facts.node_rank_is_index);
  EXPECT_FALSE(FactsFrom({{"JOB_COMPLETION_INDEX", "2"}, {"PET_NODE_RANK", "2"}}).node_rank_is_index);
}

TEST(JobFacts, TheLeaderOfAJobSetIsTheFirstPodOfItsJob) {
  EXPECT_EQ(FactsFrom({{"JOBSET_NAME", "llama"}, {"JOBSET_REPLICATEDJOB_NAME", "node"}}).leader,
            "llama-node-0-0.llama");
  EXPECT_EQ(FactsFrom({{"JOBSET_NAME", "llama"}}).leader, std::nullopt);
}

TEST(JobFacts, ANumberThatIsNoneIsToldWithItsVariable) {
  const JobFacts facts = FactsFrom({{"PET_NPROC_PER_NODE", "auto"}, {"PET_NNODES", "1:4"}});
  EXPECT_EQ(facts.local_size, std::nullopt);
  EXPECT_EQ(facts.nodes, std::nullopt);
  EXPECT_EQ(facts.unclear.at(JobFact::kLocalSize), "PET_NPROC_PER_NODE=auto");
  EXPECT_EQ(facts.unclear.at(JobFact::kNodes), "PET_NNODES=1:4");
}

// The fact when only that variable is set, to 3.
std::optional<std::string> FactOf(const FactSource& source) {
  const JobFacts facts =
      FactsFrom({{source.variable, "3"}, {"JOBSET_REPLICATEDJOB_NAME", "node"}});
  const auto text = [](const std::optional<uint32_t>& number) {
    return number.has_value() ? std::optional(std::to_string(*number)) : std::nullopt;
  };
  switch (source.fact) {
    case JobFact::kRank: return text(facts.rank);
    case JobFact::kWorldSize: return text(facts.world_size);
    case JobFact::kLocalSize: return text(facts.local_size);
    case JobFact::kNodes: return text(facts.nodes);
    case JobFact::kNodeRank: return text(facts.node_rank);
    case JobFact::kLeader: return facts.leader;
    case JobFact::kJob: return facts.job;
  }
  return std::nullopt;
}

TEST(FactSources, EachVariableAloneTellsItsFact) {
  for (const FactSource& source : FactSources()) {
    const auto told = FactOf(source);
    ASSERT_TRUE(told.has_value()) << source.variable;
    EXPECT_NE(told->find('3'), std::string::npos) << source.variable;
  }
}

TEST(FactSources, TheEarlierVariableOfAFactCounts) {
  std::map<JobFact, std::string> first;
  Variables all = {{"JOBSET_REPLICATEDJOB_NAME", "node"}};
  int number = 1;
  for (const FactSource& source : FactSources()) {
    const std::string value = std::to_string(number++);
    all[source.variable] = value;
    first.emplace(source.fact, value);
  }
  const JobFacts facts = FactsFrom(all);
  EXPECT_EQ(std::to_string(*facts.rank), first[JobFact::kRank]);
  EXPECT_EQ(std::to_string(*facts.nodes), first[JobFact::kNodes]);
  EXPECT_EQ(std::to_string(*facts.node_rank), first[JobFact::kNodeRank]);
  EXPECT_EQ(*facts.leader, first[JobFact::kLeader]);
}

TEST(FactSources, AreDescribedByTheFlagThatTheyAreTheDefaultsOf) {
  const std::string text = DescribeFactSources();
  const std::vector<std::string> all = absl::StrSplit(text, absl::ByAnyChar(" +\n"));
  const std::set<std::string> words(all.begin(), all.end());
  for (const FactSource& source : FactSources()) {
    const bool launched = source.fact != JobFact::kRank && source.fact != JobFact::kWorldSize &&
                          source.fact != JobFact::kJob;
    EXPECT_EQ(words.count(source.variable) > 0, launched) << source.variable;
  }
  EXPECT_LT(text.find("--nproc"), text.find("LOCAL_WORLD_SIZE"));
  EXPECT_LT(text.find("LOCAL_WORLD_SIZE"), text.find("--nnodes"));
}

TEST(JobFacts, IgnoresNumbersThatAreNone) {
  for (const char* text : {"x", "-1", "1x", "1.5", "99999999999", " 1"}) {
    EXPECT_FALSE(FactsFrom({{"RANK", text}}).rank.has_value()) << text;
  }
}

class FirstHostOf : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(FirstHostOf, IsTheFirstOfTheList) {
  EXPECT_EQ(FirstHost(GetParam().first), GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(
    Lists, FirstHostOf,
    ::testing::Values(std::pair("", ""), std::pair("gpu1", "gpu1"), std::pair("gpu1,gpu2", "gpu1"),
                      std::pair("gpu[07-09,12],x1", "gpu07"), std::pair("gpu[3,5]", "gpu3"),
                      std::pair("gpu[12]", "gpu12"), std::pair("gpu-a[001-128]", "gpu-a001"),
                      std::pair("a1,gpu[1-2]", "a1"), std::pair("gpu[1-2]-ib,x", "gpu1-ib"),
                      std::pair("rack[2-3]n[4,6],x", "rack2n4"), std::pair("gpu[", "gpu"),
                      std::pair("gpu[1", "gpu")));

}  // namespace
}  // namespace ckptd

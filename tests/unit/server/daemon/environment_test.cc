#include "server/daemon/environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

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

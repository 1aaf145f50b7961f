// Health of one daemon, alone in its group, or of one whose group is incomplete.
#include "server/node/health.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr ServingStatus kServing = ServingStatus::kServing;
constexpr ServingStatus kNotServing = ServingStatus::kNotServing;
constexpr ServingStatus kUnknown = ServingStatus::kUnknown;

class HealthTest : public ::testing::Test {
 protected:
  std::unique_ptr<Node> Start(uint32_t world_size) {
    Node::Options options;
    options.identity.incarnation = "one";
    options.identity.world_size = world_size;
    options.reading.threads = 1;
    return std::make_unique<Node>(*memory_, peer_memory_, std::move(options));
  }
  // The status of the checkpoint's id, its name, and the path of its source.
  std::vector<ServingStatus> OfCheckpoint(const std::string& name) {
    std::vector<ServingStatus> all;
    for (const std::string& text : {name, name.substr(name.find('/') + 1), source_.path(), source_.path() + "/"}) {
      all.push_back(HealthOf(*node_, std::string(kCheckpointService) + text));
    }
    return all;
  }

  SmallSource source_;
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(4);
  PeerMemoryInProcess peer_memory_;
  std::unique_ptr<Node> node_ = Start(1);
};

TEST_F(HealthTest, ACompleteGroupServes) {
  EXPECT_EQ(HealthOf(*node_, ""), kServing);
  EXPECT_EQ(HealthOf(*node_, "liveness"), kServing);
  EXPECT_EQ(HealthOf(*node_, "ckptd.v1.Group"), kServing);
}

TEST_F(HealthTest, AGroupThatWaitsForARankIsAliveAndDoesNotServe) {
  node_ = Start(2);
  EXPECT_EQ(HealthOf(*node_, "liveness"), kServing);
  EXPECT_EQ(HealthOf(*node_, "ckptd.v1.Group"), kNotServing);
}

TEST_F(HealthTest, ACheckpointServesOnceItIsActiveByNameIdAndSource) {
  const std::string path = source_.path();
  EXPECT_EQ(HealthOf(*node_, std::string(kCheckpointService) + path), kUnknown);
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply reply, node_->Load(RuleRequest("replicate:1", path), ""));
  node_->catalog().watchers().WatchEnd(reply.info.name, Soon());
  EXPECT_EQ(OfCheckpoint(reply.info.name), std::vector<ServingStatus>(4, kServing));
}

TEST_F(HealthTest, ALoadThatFailedDoesNotServeAndALaterOneOfTheSourceCounts) {
  const std::string path = source_.path();
  node_->catalog().Begin("checkpoints/bad", IdentifiedRequest(RuleRequest("replicate:1", path)));
  EXPECT_EQ(OfCheckpoint("checkpoints/bad"), std::vector<ServingStatus>(4, kNotServing));  // LOADING
  node_->catalog().Fail("checkpoints/bad", absl::AbortedError("on purpose"));
  EXPECT_EQ(OfCheckpoint("checkpoints/bad"), std::vector<ServingStatus>(4, kNotServing));
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply reply, node_->Load(RuleRequest("replicate:1", path), ""));
  node_->catalog().watchers().WatchEnd(reply.info.name, Soon());
  EXPECT_EQ(HealthOf(*node_, std::string(kCheckpointService) + path), kServing);
}

TEST_F(HealthTest, ADaemonThatDrainsIsAliveAndServesNothingElse) {
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply reply,
                       node_->Load(RuleRequest("replicate:1", source_.path()), ""));
  node_->catalog().watchers().WatchEnd(reply.info.name, Soon());
  node_->Drain();
  EXPECT_EQ(HealthOf(*node_, "liveness"), kServing);
  EXPECT_EQ(HealthOf(*node_, ""), kNotServing);
  EXPECT_EQ(HealthOf(*node_, "ckptd.v1.Group"), kNotServing);
  EXPECT_EQ(OfCheckpoint(reply.info.name), std::vector<ServingStatus>(4, kNotServing));
}

TEST_F(HealthTest, OtherNamesAreUnknown) {
  for (const char* name : {"nosuch", "ckptd.v1.Checkpoint", "ckptd.v1.Checkpoint/", "ckptd.v1.Checkpoint/nosuch",
                           "ckptd.v1.Checkpoint//", "ckptd.v1.Groups"}) {
    EXPECT_EQ(HealthOf(*node_, name), kUnknown) << name;
  }
}

}  // namespace
}  // namespace ckptd

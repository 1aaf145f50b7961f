// Calls of trainers, without sockets.
#include "server/rpc/checkpoint_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/node/node.h"
#include "server/node/trainer_key.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"

namespace ckptd {
namespace {

class CheckpointServiceTest : public ::testing::Test {
 protected:
  static constexpr int kSegments = 4;

  grpc::Status Acquire(const std::string& name) {
    v1::AcquireShardRequest request;
    request.set_name(name);
    request.set_mode(v1::ATTACH_MODE_SHARED);
    v1::AcquireShardResponse response;
    grpc::ServerContext context;
    return service_.AcquireShard(&context, &request, &response);
  }
  static Node::Options Options() {
    Node::Options options;
    options.identity.incarnation = "one";
    options.reading.threads = 1;
    return options;
  }

  SmallSource source_;
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(kSegments);
  PeerMemoryInProcess peer_memory_;
  Node node_{*memory_, peer_memory_, Options()};
  CheckpointServiceImpl service_{node_, "/fd.sock"};
};

TEST_F(CheckpointServiceTest, LendsWhatIsAboutToBeActive) {
  for (int i = 0; i < kSegments; ++i) {
    source_.Write(static_cast<uint8_t>(i));
    const auto load = node_.Load(RuleRequest("replicate:1", source_.path()), "");
    ASSERT_TRUE(load.ok());
    ASSERT_FALSE(load->resident);
    EXPECT_EQ(Acquire(load->info.name).error_message(), "");
  }
}

TEST_F(CheckpointServiceTest, AWatchKeepsNothingForAnIdOfAnyLength) {
  v1::WatchCheckpointRequest request;
  request.set_name("checkpoints/a");
  request.set_load_request_id(std::string(129, 'i'));
  grpc::ServerContext context;
  EXPECT_EQ(service_.WatchCheckpoint(&context, &request, nullptr).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CheckpointServiceTest, GivesTrainersAKeyOfTheGroupsSecretAndNotTheSecret) {
  const v1::GetTrainerKeyRequest request;
  v1::GetTrainerKeyResponse response;
  grpc::ServerContext context;
  ASSERT_TRUE(service_.GetTrainerKey(&context, &request, &response).ok());
  EXPECT_EQ(response.key(), DeriveTrainerKey(node_.group_secret()));
  EXPECT_EQ(response.key().size(), 32u);
}

}  // namespace
}  // namespace ckptd

// Calls of trainers, without sockets.
#include "server/rpc/checkpoint_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/node/node.h"
#include "server/node/trainer_key.h"
#include "tests/testing/as_guest.h"
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
  // The name of a checkpoint that is ACTIVE.
  std::string LoadOnce() {
    const LoadRequest request = RuleRequest("replicate:1", source_.path());
    const std::string name = node_.Load(request, "").value().info.name;
    node_.catalog().watchers().WatchEnd(name, Soon());
    return name;
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

// Every call that names a checkpoint, or a lease of one.
TEST_F(CheckpointServiceTest, AGuestCanDoNothingWithWhatWasLoadedForAnother) {
  const std::string name = LoadOnce();
  CheckpointServiceImpl guests(node_, "/fd.sock", SomeGuest());
  const auto call = [&](auto method, auto request, auto response) {
    request.set_name(name);
    grpc::ServerContext context;
    return (guests.*method)(&context, &request, &response).error_code();
  };
  using Service = CheckpointServiceImpl;
  constexpr auto kDenied = grpc::StatusCode::PERMISSION_DENIED;
  EXPECT_EQ(call(&Service::GetCheckpoint, v1::GetCheckpointRequest(), v1::GetCheckpointResponse()),
            kDenied);
  EXPECT_EQ(call(&Service::AcquireShard, v1::AcquireShardRequest(), v1::AcquireShardResponse()),
            kDenied);
  EXPECT_EQ(call(&Service::ListShardTensors, v1::ListShardTensorsRequest(),
                 v1::ListShardTensorsResponse()),
            kDenied);
  EXPECT_EQ(call(&Service::VerifyCheckpoint, v1::VerifyCheckpointRequest(),
                 v1::VerifyCheckpointResponse()),
            kDenied);
  grpc::ServerContext context;
  v1::WatchCheckpointRequest watch;
  watch.set_name(name);
  EXPECT_EQ(guests.WatchCheckpoint(&context, &watch, nullptr).error_code(), kDenied);
  v1::ReleaseShardRequest release;
  release.set_lease(node_.leases().Open(name, AttachMode::kShared).value().lease);
  v1::ReleaseShardResponse released;
  EXPECT_EQ(guests.ReleaseShard(&context, &release, &released).error_code(), kDenied);
  EXPECT_EQ(node_.leases().List().size(), 1u);
  v1::ListCheckpointsRequest list;
  v1::ListCheckpointsResponse listed;
  EXPECT_TRUE(guests.ListCheckpoints(&context, &list, &listed).ok());
  EXPECT_EQ(listed.checkpoints_size(), 0);
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

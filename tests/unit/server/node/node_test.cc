// One daemon without its sockets, alone in its group.
#include "server/node/node.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

class NodeTest : public ::testing::Test {
 protected:
  std::unique_ptr<Node> Start() {
    Node::Options options;
    options.identity.incarnation = "one";
    options.reading.threads = 1;
    return std::make_unique<Node>(*memory_, peer_memory_, std::move(options));
  }
  LoadRequest Request() { return RuleRequest("replicate:1", source_.path()); }
  // Loads and waits for the end. Returns the name.
  std::string Load(const LoadRequest& request) {
    const std::string name = node_->Load(request, "").value().info.name;
    node_->catalog().watchers().WatchEnd(name, Soon());
    return name;
  }

  SmallSource source_;
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(4);
  PeerMemoryInProcess peer_memory_;
  std::unique_ptr<Node> node_ = Start();
};

TEST_F(NodeTest, LoadsACheckpoint) {
  const std::string name = Load(Request());
  EXPECT_EQ(node_->catalog().Get(name).value().state, CheckpointState::kActive);
  EXPECT_EQ(BytesOf(node_->catalog(), name, 0), Rows(source_.a(), 1000, 0, 7));
}

TEST_F(NodeTest, GivesTheResidentCheckpointForAnEqualRequest) {
  const std::string name = Load(Request());
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply again, node_->Load(Request(), ""));
  EXPECT_TRUE(again.resident);
  EXPECT_EQ(again.info.name, name);
}

TEST_F(NodeTest, LoadsAnewWhenAFileHasChanged) {
  const std::string name = Load(Request());
  source_.Write(1);
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply again, node_->Load(Request(), ""));
  EXPECT_FALSE(again.resident);
  EXPECT_NE(again.info.name, name);
  EXPECT_THAT(again.differs, ::testing::ElementsAre("files"));
}

TEST_F(NodeTest, NamesWhatDiffersFromTheResidentCheckpoint) {
  LoadRequest other = Request();
  other.digests = false;
  Load(other);
  EXPECT_THAT(node_->Load(Request(), "").value().differs, ::testing::ElementsAre("digests"));
}

TEST_F(NodeTest, ARepeatedRequestIdGivesTheSameCheckpoint) {
  const std::string name = node_->Load(Request(), "id").value().info.name;
  EXPECT_EQ(node_->Load(Request(), "id").value().info.name, name);
}

TEST_F(NodeTest, ARequestIdIsNotForTwoRequests) {
  ASSERT_OK(node_->Load(Request(), "id"));
  LoadRequest other = Request();
  other.digests = false;
  EXPECT_THAT(node_->Load(other, "id"),
              FailsWith(absl::StatusCode::kAlreadyExists, reason::kRequestIdReused));
}

TEST_F(NodeTest, ARequestIdIsBounded) {
  ASSERT_OK(node_->Load(Request(), std::string(128, 'i')));
  EXPECT_THAT(node_->Load(Request(), std::string(129, 'i')),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST_F(NodeTest, AnIdClaimedByARequestThatFailedIsStillItsOwn) {
  LoadRequest refused = Request();
  refused.source = "/not there";
  ASSERT_OK(node_->Load(refused, "id"));
  EXPECT_THAT(node_->Load(Request(), "id"),
              FailsWith(absl::StatusCode::kAlreadyExists, reason::kRequestIdReused));
}

TEST_F(NodeTest, ADrainingDaemonTakesNothingNew) {
  node_->Drain();
  const absl::Status refused = node_->Load(Request(), "").status();
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kUnavailable, reason::kDraining));
  EXPECT_EQ(FactsOf(refused).at("rank"), "0");
}

TEST_F(NodeTest, VerifyingFindsWhatWasLoaded) {
  const std::string name = Load(Request());
  ASSERT_OK_AND_ASSIGN(const Verification result, node_->Verify(name, Soon()));
  EXPECT_EQ(result.tensors, 2u);
  EXPECT_EQ(result.bytes, SmallSource::kBytesA + SmallSource::kBytesB);
  EXPECT_THAT(result.mismatched, ::testing::IsEmpty());
}

TEST_F(NodeTest, VerifyingNamesATensorWhoseBytesChanged) {
  LoadRequest request = Request();
  request.intended = AttachMode::kExclusive;  // so that its memory can still be written
  const std::string name = Load(request);
  const ShardLeases::Held held = node_->catalog().leases().Look(name).value();
  const uint64_t offset = held.shard->plan.tensors[1].offset;
  held.memory->View().segments[0][offset] ^= std::byte{1};
  EXPECT_THAT(node_->Verify(name, Soon()).value().mismatched, ::testing::ElementsAre("b"));
}

TEST_F(NodeTest, VerifyingNeedsDigests) {
  LoadRequest request = Request();
  request.digests = false;
  EXPECT_THAT(node_->Verify(Load(request), Soon()),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNoDigests));
}

TEST_F(NodeTest, ADryRunPlansAllRanksOfTheRules) {
  ASSERT_OK_AND_ASSIGN(const GroupPlan plan,
                       node_->Plan(RuleRequest("fsdp:5", source_.path()), Soon()));
  EXPECT_EQ(plan.ranks().size(), 5u);
}

TEST_F(NodeTest, NothingIsLookedAtBelowTheFolderThatTheDaemonHappensToRunIn) {
  const auto refused = FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest);
  EXPECT_THAT(node_->Inspect("model", Soon()), refused);
  EXPECT_THAT(node_->Plan(RuleRequest("fsdp:5", "model"), Soon()), refused);
  DeviceMapRequest devices;
  devices.source = "model";
  EXPECT_THAT(node_->Plan(devices, Soon()), refused);
}

TEST_F(NodeTest, ADryRunOfAnotherRanksLayoutIsRefused) {
  RankLayout layout;
  layout.rank = 5;
  layout.world_size = 9;
  LoadRequest request = RuleRequest("fsdp:5", source_.path());
  request.layout = std::make_shared<const RankLayout>(layout);
  const absl::Status refused = node_->Plan(request, Soon()).status();
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kInvalidArgument, reason::kWrongRank));
  EXPECT_THAT(refused, Says("the tensors of rank 5, this daemon serves rank 0"));
}

TEST_F(NodeTest, ADryRunOfMoreThanFitsBesideTheShardsIsRefused) {
  const LoadRequest request = RuleRequest("fsdp:64", source_.path());
  EXPECT_OK(PlanDry(request, 0, Soon(), 1000));
  EXPECT_THAT(PlanDry(request, 0, Soon(), 100),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST_F(NodeTest, ADryRunEndsAtItsDeadlineAndLeavesTheWorkerToOthers) {
  const Deadline soon = Clock::now() + std::chrono::milliseconds(20);
  EXPECT_THAT(node_->Plan(RuleRequest("fsdp:1048576", source_.path()), soon),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_OK(node_->Inspect(source_.path(), Soon()));
}

TEST_F(NodeTest, AFailedLoadKeepsItsReason) {
  const std::string name = Load(RuleRequest("replicate:1", "/nonexistent/model.safetensors"));
  EXPECT_THAT(node_->catalog().Get(name).value().failure,
              FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
}

TEST_F(NodeTest, IsReadyAloneAtOnce) {
  EXPECT_TRUE(node_->WaitReady(Clock::now()));
  EXPECT_EQ(node_->GetInfo().state, "READY");
}

// A leader whose loads fail before their names have reached the member.
class HastyLeader final : public LeaderLink {
 public:
  std::function<void(const std::string& name)> abort;

  absl::StatusOr<JoinReply> Join(const MemberIdentity&, const std::vector<ResidentCheckpoint>&,
                                 Deadline) override {
    return JoinReply();
  }
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatCall&, Deadline) override {
    return HeartbeatReply();
  }
  absl::StatusOr<std::string> Propose(uint32_t, const LoadRequest&, Deadline) override {
    abort("checkpoints/a");
    return "checkpoints/a";
  }
  absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string&, Deadline) override {
    return std::set<uint32_t>();
  }
  absl::Status CancelLoad(uint32_t, const std::string&, Deadline) override {
    return absl::OkStatus();
  }
};

TEST_F(NodeTest, AMembersLoadThatEndsBeforeItsNameIsKnownDoesNotHang) {
  Node::Options options;
  options.identity.rank = 1;
  options.identity.world_size = 2;
  options.on_secret = [](const std::string&) {};
  const auto leader = std::make_shared<HastyLeader>();
  options.leader = leader;
  Node member(*memory_, peer_memory_, std::move(options));
  leader->abort = [&](const std::string& name) {
    member.Abort(name, absl::InternalError("boom"));
  };
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply reply,
                       member.Load(RuleRequest("fsdp:2", source_.path()), ""));
  EXPECT_EQ(reply.info.state, CheckpointState::kFailed);
}

TEST_F(NodeTest, AMemberThatHasNotJoinedHasNoKeyForTrainers) {
  Node::Options options;
  options.identity.rank = 1;
  options.identity.world_size = 2;
  options.on_secret = [](const std::string&) {};
  options.leader = std::make_shared<HastyLeader>();  // it sends no secret
  const Node member(*memory_, peer_memory_, std::move(options));
  EXPECT_THAT(member.TrainerKey(),
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankMissing));
  EXPECT_OK(node_->TrainerKey());
}

TEST_F(NodeTest, ALoadThatWaitsForARankHasTheTimeOfWhoeverWaitsLongest) {
  Node::Options options;
  options.identity.world_size = 2;
  Node leader(*memory_, peer_memory_, std::move(options));
  const auto load = [&](const char* rules, std::chrono::seconds timeout) {
    LoadRequest request = RuleRequest(rules, source_.path());  // rank 1 never requests it
    request.timeout = timeout;
    return leader.Load(request, "").value();
  };
  const std::string name = load("fsdp:2", std::chrono::seconds(2)).info.name;
  const Node::LoadReply second = load("fsdp:2", std::chrono::hours(1));
  ASSERT_EQ(second.info.name, name);
  EXPECT_TRUE(second.resident);
  const std::string other = load("replicate:2", std::chrono::seconds(2)).info.name;
  leader.catalog().watchers().WatchEnd(other, Soon());
  EXPECT_THAT(leader.catalog().Get(other).value().failure,
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing));
  EXPECT_EQ(leader.catalog().Get(name).value().state, CheckpointState::kLoading);
}

// A leader that records requests, and waits for other ranks forever.
class PatientLeader final : public LeaderLink {
 public:
  std::vector<LoadRequest> proposals;

  absl::StatusOr<JoinReply> Join(const MemberIdentity&, const std::vector<ResidentCheckpoint>&,
                                 Deadline) override {
    JoinReply reply;
    reply.heartbeat_interval = std::chrono::hours(1);
    reply.heartbeat_timeout = std::chrono::hours(1);
    return reply;
  }
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatCall&, Deadline) override {
    return HeartbeatReply();
  }
  absl::StatusOr<std::string> Propose(uint32_t, const LoadRequest& request, Deadline) override {
    proposals.push_back(request);
    return "checkpoints/a";
  }
  absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string&, Deadline) override {
    return std::set<uint32_t>();
  }
  absl::Status CancelLoad(uint32_t, const std::string&, Deadline) override {
    return absl::OkStatus();
  }
};

TEST_F(NodeTest, AMemberTellsTheLeaderOfEachClientThatWaitsButStatesItsTensorsOnce) {
  Node::Options options;
  options.identity.rank = 1;
  options.identity.world_size = 2;
  options.on_secret = [](const std::string&) {};
  const auto leader = std::make_shared<PatientLeader>();
  options.leader = leader;
  Node member(*memory_, peer_memory_, std::move(options));
  LoadRequest request = RankRequest(1, 2);
  for (const int seconds : {5, 60}) {
    request.timeout = std::chrono::seconds(seconds);
    EXPECT_EQ(member.Load(request, "").value().info.name, "checkpoints/a");
  }
  ASSERT_EQ(leader->proposals.size(), 2u);
  EXPECT_EQ(leader->proposals[1].timeout, std::chrono::seconds(60));
  EXPECT_EQ(leader->proposals[1].proposal_id, leader->proposals[0].proposal_id);
  Progress begun;
  begun.stage = Stage::kTransferring;
  member.catalog().UpdateProgress("checkpoints/a", begun);
  EXPECT_TRUE(member.Load(request, "").value().resident);
  EXPECT_EQ(leader->proposals.size(), 2u) << "it waits for nobody";
}

TEST_F(NodeTest, ALeaderThatIsSilentWhenTheTimeIsOverIsNotTakenForLost) {
  node_->catalog().Begin("checkpoints/a", Request());
  node_->LeaderLost("checkpoints/a", Clock::now());
  EXPECT_THAT(node_->catalog().Get("checkpoints/a").value().failure,
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  node_->catalog().Begin("checkpoints/b", Request());
  node_->LeaderLost("checkpoints/b", Soon());
  EXPECT_THAT(node_->catalog().Get("checkpoints/b").value().failure,
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
}

TEST_F(NodeTest, ForcingALoadOutCancelsIt) {
  Node::Options options;
  options.identity.world_size = 2;
  Node leader(*memory_, peer_memory_, std::move(options));
  const LoadRequest request = RuleRequest("fsdp:2", source_.path());  // rank 1 never requests it
  const std::string name = leader.Load(request, "").value().info.name;
  EXPECT_THAT(leader.Unload(name, false),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNotActive));
  ASSERT_OK_AND_ASSIGN(const Node::Unloaded unloaded, leader.Unload(name, true));
  EXPECT_TRUE(unloaded.cancelled);
  EXPECT_THAT(leader.catalog().Get(name).value().failure,
              FailsWith(absl::StatusCode::kAborted, reason::kLoadCancelled));
  ASSERT_OK_AND_ASSIGN(const Node::Unloaded again, leader.Unload(name, true));
  EXPECT_FALSE(again.cancelled) << "it was failed, and is listed no more";
  EXPECT_THAT(leader.catalog().List(), ::testing::IsEmpty());
}

TEST_F(NodeTest, CanGoWhileALoadRuns) {
  ASSERT_OK(node_->Load(Request(), ""));
  node_.reset();
  EXPECT_EQ(memory_->Usage().used, 0u);
}

}  // namespace
}  // namespace ckptd

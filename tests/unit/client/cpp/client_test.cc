#include "client/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>

#include "client/cpp/admin.h"
#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/client/fake_daemon.h"

namespace ckptd {
namespace {

using fake::FakeDaemon;

constexpr auto kActive = v1::Checkpoint::STATE_ACTIVE;
constexpr auto kLoading = v1::Checkpoint::STATE_LOADING;

class ClientTest : public ::testing::Test {
 protected:
  // Starts the daemon with the answers that are set by now.
  Client Connect() {
    daemon_.Start();
    return Client::Connect(Options()).value();
  }
  ConnectOptions Options() const {
    ConnectOptions options;
    options.address.argument = daemon_.socket();
    return options;
  }

  static v1::LoadSpec Spec(const std::string& source = "/m") {
    v1::LoadSpec spec;
    spec.set_source(source);
    spec.mutable_layout()->set_rules("fsdp:1");
    return spec;
  }

  FakeDaemon daemon_;
};

TEST_F(ClientTest, SaysWhoIsNotThereAndWhatToDo) {
  const auto client = Client::Connect(Options());
  EXPECT_THAT(client.status(),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
  EXPECT_THAT(client.status(), Says("chosen by the argument"));
}

TEST_F(ClientTest, SaysThatWhatListensIsNoDaemon) {
  ConnectOptions options = Options();
  options.address.argument = daemon_.fd_socket().path();
  options.connect_timeout = std::chrono::milliseconds(500);
  const std::string own = std::to_string(::getpid());
  EXPECT_THAT(Client::Connect(options).status(),
              Says("process " + own + " listens there, but has not answered within 500 ms"));
}

TEST_F(ClientTest, NamesASocketThatIsNotThereAsItWasWritten) {
  ConnectOptions options = Options();
  options.address.argument = daemon_.dir() / "a b%20";
  EXPECT_THAT(Client::Connect(options).status(), Says("unix:" + options.address.argument + " "));
}

// Makes this process another user while it exists. Needs root.
class AsUser {
 public:
  explicit AsUser(uid_t uid) { EXPECT_EQ(::seteuid(uid), 0); }
  ~AsUser() { EXPECT_EQ(::seteuid(0), 0); }
};

TEST(ClientConnect, RefusesASocketThatAnotherUserListensOn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be several users";
  const TempFolder folder;
  ConnectOptions options;
  options.address.argument = folder / "s";
  options.connect_timeout = std::chrono::milliseconds(500);
  ASSERT_EQ(::chmod((folder / "").c_str(), 01777), 0);
  UnixListener listener;
  {
    const AsUser stranger(65534);  // the kernel records the user who calls listen
    listener = UnixListener::Open(options.address.argument, 0777).value();
  }
  for (const uid_t uid : {65533, 0}) {
    const AsUser other(uid);
    const auto client = Client::Connect(options);
    EXPECT_THAT(client.status(),
                FailsWith(absl::StatusCode::kPermissionDenied, reason::kDaemonUnreachable));
    EXPECT_THAT(client.status(), Says("user 65534 listens there"));
  }
  for (const char* named : {"65534", "nobody"}) {
    ASSERT_EQ(::setenv("CKPTD_DAEMON_UID", named, 1), 0);
    EXPECT_THAT(Client::Connect(options).status(), Says("has not answered"));
  }
  ::unsetenv("CKPTD_DAEMON_UID");
}

TEST_F(ClientTest, RefusesASocketThatAnotherUserCouldReplace) {
  Connect();
  ASSERT_EQ(::chmod((daemon_.dir() / "").c_str(), 0777), 0);
  const absl::Status refused = Client::Connect(Options()).status();
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kPermissionDenied, reason::kDaemonUnreachable));
  EXPECT_THAT(refused, Says("other users may write in " + daemon_.dir().path()));
}

TEST_F(ClientTest, SendsWhatIsToBeLoadedAndWhetherItWillBeAcquired) {
  *daemon_.answers.load.mutable_checkpoint() = FakeDaemon::MakeCheckpoint(kActive);
  daemon_.answers.load.set_resident(true);
  daemon_.answers.load.add_differs("layout");
  Client client = Connect();
  ASSERT_OK_AND_ASSIGN(const v1::LoadCheckpointResponse result, client.Load(Spec(), {.hold = false}));
  EXPECT_TRUE(result.resident());
  EXPECT_THAT(result.differs(), ::testing::ElementsAre("layout"));
  EXPECT_EQ(result.checkpoint().state(), kActive);
  EXPECT_EQ(daemon_.last_load.spec().SerializeAsString(), Spec().SerializeAsString());
  EXPECT_TRUE(daemon_.last_load.no_hold());
}

TEST(ClientLayout, IsOfARanksOwnTensors) {
  RankLayout layout;
  layout.rank = 1;
  layout.world_size = 2;
  layout.meshes = {{{2}, {"dp"}, {0, 1}}};
  Sharding padded;
  padded.mesh = 0;
  padded.placements = {{Placement::Kind::kShard, 0, 1}};
  padded.padded_dim = 0;
  Sharding boxes;
  boxes.boxes = {{{0, 2}, {3, 4}}};
  layout.shardings = {padded, boxes};
  layout.targets = {{"a", 0, Dtype::kBF16, Shape{4, 5}, {"tied"}, false, {}},
                    {"b", 1, {}, Shape{9}, {}, false, FlatPlace{0, 4}}};
  layout.flats = {{"flat", 0, 16}};
  ASSERT_OK_AND_ASSIGN(const v1::RankLayout sent, ToRankLayout(layout));
  EXPECT_EQ(sent.rank(), 1);
  EXPECT_EQ(sent.meshes(0).dim_names(0), "dp");
  EXPECT_EQ(sent.shardings(0).placements(0).kind(), v1::Placement::KIND_SHARD);
  EXPECT_TRUE(sent.shardings(0).has_padded_dim());
  EXPECT_FALSE(sent.shardings(1).has_mesh());
  EXPECT_EQ(sent.shardings(1).boxes(0).extents(1), 4U);
  EXPECT_THAT(sent.dims(), ::testing::ElementsAre(4, 5, 9));
  EXPECT_EQ(sent.alias_names(0), "tied");
  EXPECT_EQ(sent.flat_parameters(0).elements(), 16U);
  EXPECT_THAT(sent.flat_parameters(0).tensors(), ::testing::ElementsAre(1));
  EXPECT_THAT(sent.flat_parameters(0).begins(), ::testing::ElementsAre(4));
}

TEST_F(ClientTest, RepeatsALostLoadUnderTheSameId) {
  daemon_.answers.lose_loads = 2;
  Client client = Connect();
  ASSERT_OK(client.Load(Spec()));
  ASSERT_EQ(daemon_.load_ids.size(), 3U);
  EXPECT_EQ(daemon_.load_ids[0], daemon_.load_ids[2]);
  EXPECT_FALSE(daemon_.load_ids[0].empty());
}

TEST_F(ClientTest, WaitsForADaemonThatIsGoneForAWhileOnly) {
  daemon_.Start();
  ConnectOptions options = Options();
  options.gone_timeout = std::chrono::milliseconds(100);
  Client client = Client::Connect(options).value();
  daemon_.Stop();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT(client.Load(Spec()).status(),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
  EXPECT_LT(std::chrono::steady_clock::now() - began, options.call_timeout / 2);
}

TEST_F(ClientTest, DoesNotRepeatALoadThatTheDaemonRefused) {
  daemon_.answers.error =
      fake::DaemonError(grpc::StatusCode::UNAVAILABLE, "DRAINING", "the daemon is draining");
  Client client = Connect();
  EXPECT_THAT(client.Load(Spec()).status(),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDraining));
  EXPECT_EQ(daemon_.load_ids.size(), 1U);
}

TEST_F(ClientTest, SendsASourceThatIsNotUtf8AsAUri) {
  Client client = Connect();
  const std::string source = "/m\xff";
  const std::string sent = "file:///m%FF";
  EXPECT_OK(client.Inspect(source).status());
  EXPECT_EQ(daemon_.last_inspect.source(), sent);
  EXPECT_OK(client.Plan(Spec(source)).status());
  EXPECT_EQ(daemon_.last_plan.spec().source(), sent);
  v1::PlanLoadRequest devices;
  devices.mutable_spec()->set_source(source);
  devices.mutable_device_map()->set_max_memory("cpu=1GB");
  EXPECT_OK(client.PlanDevices(devices).status());
  EXPECT_EQ(daemon_.last_plan.spec().source(), sent);
  EXPECT_EQ(daemon_.last_plan.device_map().max_memory(), "cpu=1GB");
  EXPECT_OK(client.Load(Spec(source)).status());
  EXPECT_EQ(daemon_.last_load.spec().source(), sent);
}

TEST_F(ClientTest, KeepsTheDaemonsCodeSentenceReasonAndFacts) {
  daemon_.answers.error = fake::DaemonError(grpc::StatusCode::NOT_FOUND, "CHECKPOINT_NOT_FOUND",
                                            "there is no checkpoints/zz");
  Client client = Connect();
  const absl::Status status = client.Get("checkpoints/zz").status();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
  EXPECT_EQ(MessageOf(status), "there is no checkpoints/zz");
  EXPECT_EQ(FactsOf(status).at("tensor"), "model.weight");
}

TEST_F(ClientTest, ReadsAnErrorWithLongDetails) {
  const std::string message(60'000, 'x');
  daemon_.answers.error =
      fake::DaemonError(grpc::StatusCode::NOT_FOUND, "TENSOR_NOT_FOUND", message);
  Client client = Connect();
  const absl::Status status = client.Get("checkpoints/zz").status();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kNotFound, reason::kTensorNotFound));
  EXPECT_EQ(MessageOf(status).substr(0, 1000), message.substr(0, 1000));
}

TEST_F(ClientTest, GivesUpOnASlowAnswerInTime) {
  daemon_.answers.before_watch_ends = [](grpc::ServerContext* context) {
    while (!context->IsCancelled()) std::this_thread::yield();
  };
  v1::Checkpoint loading = FakeDaemon::MakeCheckpoint(kLoading);
  loading.mutable_progress()->set_stage(v1::STAGE_GATHERING);
  loading.mutable_progress()->add_waiting_ranks(3);
  loading.mutable_progress()->set_conflict("rank 3 loads /other");
  daemon_.answers.watch = {loading};
  Client client = Connect();
  const auto last = client.Watch("checkpoints/ab12", {.timeout = std::chrono::seconds(2)});
  EXPECT_THAT(last.status(), FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_THAT(last.status(), Says("waiting for rank 3 (rank 3 loads /other);"));
}

// A watch that reports a load and its end.
void ExpectWatched(Client client) {
  std::vector<v1::Checkpoint::State> seen;
  WatchOptions options;
  options.on_update = [&seen](const v1::Checkpoint& update) { seen.push_back(update.state()); };
  ASSERT_OK_AND_ASSIGN(const v1::Checkpoint last, client.Watch("checkpoints/ab12", options));
  EXPECT_EQ(last.state(), kActive);
  EXPECT_THAT(seen, ::testing::ElementsAre(kLoading, kActive));
}

TEST_F(ClientTest, WatchesUntilTheLoadIsDone) {
  daemon_.answers.watch = {FakeDaemon::MakeCheckpoint(kLoading),
                           FakeDaemon::MakeCheckpoint(kActive)};
  ExpectWatched(Connect());
}

TEST(ClientLayout, HasTheShapesOfAllTensorsOrOfNone) {
  RankLayout layout;
  layout.shardings.emplace_back();
  layout.targets.resize(2);
  layout.targets[0].name = "a";
  layout.targets[0].expected_shape = Shape{4};
  layout.targets[1].name = "b";
  EXPECT_THAT(ToRankLayout(layout),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  layout.targets[1].expected_shape = Shape{};
  EXPECT_OK(ToRankLayout(layout));
}

TEST(ClientTimes, BeyondWhatTheClockCountsAreInTheFuture) {
  google::protobuf::Timestamp late;
  late.set_seconds(std::numeric_limits<int64_t>::max());
  late.set_nanos(std::numeric_limits<int32_t>::max());
  EXPECT_GT(TimeOf(late), std::chrono::system_clock::now());
}

constexpr int kUnknown = 77;

TEST(ClientNames, AreThoseOfTheApiWithoutItsPrefixes) {
  EXPECT_EQ(NameOf(v1::STAGE_WAITING_FOR_MEMORY), "WAITING_FOR_MEMORY");
  EXPECT_EQ(NameOf(v1::Checkpoint::STATE_TAKEN), "TAKEN");
  EXPECT_EQ(NameOf(v1::HANDLE_KIND_CUDA_IPC), "CUDA_IPC");
  EXPECT_EQ(NameOf(AttachMode::kExclusive), "EXCLUSIVE");
  EXPECT_EQ(NameOf(static_cast<v1::Stage>(kUnknown)), "UNSPECIFIED");
}

TEST_F(ClientTest, DoesNotTakeABrokenOffWatchForAFinishedLoad) {
  daemon_.answers.watch = {FakeDaemon::MakeCheckpoint(kLoading)};
  Client client = Connect();
  EXPECT_THAT(client.Watch("checkpoints/ab12").status(), Says("ended before the load did"));
  daemon_.answers.watch[0].set_state(static_cast<v1::Checkpoint::State>(kUnknown));
  EXPECT_THAT(client.Watch("checkpoints/ab12").status(), Says("ended before the load did"));
}

TEST_F(ClientTest, EndsAWatchThatIsCancelled) {
  daemon_.answers.watch = {FakeDaemon::MakeCheckpoint(kLoading)};
  daemon_.answers.before_watch_ends = [](grpc::ServerContext* context) {
    while (!context->IsCancelled()) std::this_thread::yield();
  };
  Client client = Connect();
  CancelToken token;
  WatchOptions options;
  options.cancel = &token;
  options.on_update = [&token](const v1::Checkpoint&) { EXPECT_TRUE(token.Cancel()); };
  EXPECT_TRUE(absl::IsCancelled(client.Watch("checkpoints/ab12", options).status()));
}

TEST_F(ClientTest, EndsAtOnceWhenItWasCancelledBefore) {
  Client client = Connect();
  CancelToken token;
  EXPECT_FALSE(token.Cancel());
  WatchOptions options;
  options.cancel = &token;
  EXPECT_TRUE(absl::IsCancelled(client.Watch("checkpoints/ab12", options).status()));
}

// The answer of a daemon that accepts no more watches.
grpc::Status NoMoreWatches() {
  return fake::DaemonError(grpc::StatusCode::RESOURCE_EXHAUSTED, reason::kTooManyWaiting,
                           "watching: 64 watches are open; poll GetCheckpoint instead");
}

TEST_F(ClientTest, AsksForALoadThatItCannotWatch) {
  daemon_.answers.watch_error = NoMoreWatches();
  daemon_.answers.get = {FakeDaemon::MakeCheckpoint(kLoading),
                         FakeDaemon::MakeCheckpoint(kActive)};
  ExpectWatched(Connect());
}

TEST_F(ClientTest, AsksForALoadThatItCannotWatchUntilItsTimeIsOver) {
  daemon_.answers.watch_error = NoMoreWatches();
  v1::Checkpoint loading = FakeDaemon::MakeCheckpoint(kLoading);
  loading.mutable_progress()->add_waiting_ranks(3);
  daemon_.answers.get = {loading};
  Client client = Connect();
  const auto last = client.Watch("checkpoints/ab12", {.timeout = std::chrono::seconds(2)});
  EXPECT_THAT(last.status(), FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_THAT(last.status(), Says("waiting for rank 3"));
}

TEST_F(ClientTest, EndsWhenItIsCancelledWhileItAsks) {
  daemon_.answers.watch_error = NoMoreWatches();
  daemon_.answers.get = {FakeDaemon::MakeCheckpoint(kLoading)};
  Client client = Connect();
  CancelToken token;
  WatchOptions options;
  options.cancel = &token;
  options.on_update = [&token](const v1::Checkpoint&) { EXPECT_TRUE(token.Cancel()); };
  EXPECT_TRUE(absl::IsCancelled(client.Watch("checkpoints/ab12", options).status()));
}

TEST_F(ClientTest, ListsAllPages) {
  for (const char* name : {"checkpoints/1", "checkpoints/2", "checkpoints/3"}) {
    daemon_.answers.list.push_back(FakeDaemon::MakeCheckpoint(kActive));
    daemon_.answers.list.back().set_name(name);
  }
  Client client = Connect();
  ASSERT_OK_AND_ASSIGN(const v1::ListCheckpointsResponse all, client.List());
  ASSERT_EQ(all.checkpoints_size(), 3);
  EXPECT_EQ(all.checkpoints(2).name(), "checkpoints/3");
  EXPECT_EQ(all.next_page_token(), "");
}

TEST_F(ClientTest, GivesUpPagesThatDoNotEndWhenTheTimeOfOneCallIsOver) {
  daemon_.answers.inspect.set_next_page_token("1");
  daemon_.Start();
  ConnectOptions options = Options();
  options.call_timeout = std::chrono::milliseconds(200);
  ASSERT_OK_AND_ASSIGN(Client client, Client::Connect(options));
  EXPECT_THAT(client.Inspect("/models/m"),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
}

TEST_F(ClientTest, CallsTheAdminSocketForOperators) {
  daemon_.answers.trim.set_freed_bytes(3);
  daemon_.Start();
  ASSERT_OK_AND_ASSIGN(AdminClient admin, AdminClient::Connect(Options()));
  EXPECT_EQ(admin.Unload("checkpoints/ab12", true).value().freed_bytes(), 1'500'000'000U);
  EXPECT_TRUE(admin.Pin("checkpoints/ab12", true).value().pinned());
  EXPECT_EQ(admin.SetLogLevel("debug").value().previous_level(), "info");
  EXPECT_EQ(admin.Trim().value().freed_bytes(), 3U);
  ASSERT_OK(admin.Drain(std::chrono::seconds(7)));
  EXPECT_THAT(daemon_.admin_calls,
              ::testing::ElementsAre("unload checkpoints/ab12 force", "pin checkpoints/ab12 on",
                                     "log-level debug", "trim", "drain 7"));
}

TEST(CheckpointNames, MayBeGivenShort) {
  EXPECT_EQ(CheckpointName("ab12"), "checkpoints/ab12");
  EXPECT_EQ(CheckpointName("checkpoints/ab12"), "checkpoints/ab12");
}

}  // namespace
}  // namespace ckptd

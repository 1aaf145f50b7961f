// Values that daemons send each other arrive unchanged.
#include "server/rpc/convert.h"

#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/wire/layout.h"
#include "server/rpc/inspect_page.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

// A layout that uses every field.
RankLayout RichLayout() {
  RankLayout layout;
  layout.rank = 1;
  layout.world_size = 4;
  layout.meshes.push_back({{2, 2}, {"dp", "tp"}, {0, 1, 2, 3}});
  Sharding strided;
  strided.mesh = 0;
  strided.placements = {{Placement::Kind::kStridedShard, 0, 2}, {Placement::Kind::kShard, -1, 1}};
  strided.padded_dim = 0;
  Sharding replicated;
  replicated.mesh = 0;
  replicated.placements.resize(2);
  Sharding boxes;
  boxes.boxes = {{{0, 4}, {2, 4}}, {{3, 0}, {1, 8}}};
  layout.shardings = {strided, replicated, boxes};
  layout.targets = {{"a", 0, Dtype::kBF16, Shape{4, 8}, {"tied"}, false, {}},
                    {"b", 2, Dtype::kUnspecified, Shape{}, {}, false, {}},
                    {"c", 1, Dtype::kUnspecified, Shape{7}, {"d", "e"}, true, {}}};
  layout.targets.push_back({"f", 3, Dtype::kUnspecified, Shape{5}, {}, false, FlatPlace{0, 4}});
  layout.targets.push_back({"g", 3, Dtype::kUnspecified, Shape{3}, {}, false, FlatPlace{0, 0}});
  layout.shardings.emplace_back();
  layout.flats = {{"flat", 1, 12}};
  layout.skip_missing = true;
  layout.refuse_unexpected = true;
  return layout;
}

TEST(ConvertLayout, KeepsEverythingALayoutCanSay) {
  const RankLayout layout = RichLayout();
  ASSERT_OK_AND_ASSIGN(const RankLayout back, FromProto(ToProto(layout)));
  EXPECT_EQ(LayoutDigest(back), LayoutDigest(layout));
  EXPECT_EQ(back.meshes, layout.meshes);
  EXPECT_EQ(back.shardings, layout.shardings);
  EXPECT_EQ(back.flats, layout.flats);
}

TEST(ConvertLayout, KeepsTargetsWithoutShapes) {
  RankLayout layout = RichLayout();
  for (TargetSpec& target : layout.targets) target.expected_shape.reset();
  ASSERT_OK_AND_ASSIGN(const RankLayout back, FromProto(ToProto(layout)));
  EXPECT_EQ(LayoutDigest(back), LayoutDigest(layout));
}

// A field of a later version: number 99, the value 1.
void AddUnknown(google::protobuf::Message& message) {
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(99, 1);
}

TEST(ConvertLayout, RefusesAFieldThatItDoesNotKnowWhereverItIs) {
  const auto whole = ToProto(RichLayout());
  ASSERT_OK(FromProto(whole));
  for (const auto& add : std::vector<std::function<void(v1::RankLayout&)>>{
           [](auto& layout) { AddUnknown(layout); },
           [](auto& layout) { AddUnknown(*layout.mutable_meshes(0)); },
           [](auto& layout) { AddUnknown(*layout.mutable_shardings(1)); },
           [](auto& layout) { AddUnknown(*layout.mutable_shardings(0)->mutable_placements(1)); },
           [](auto& layout) { AddUnknown(*layout.mutable_shardings(2)->mutable_boxes(0)); },
           [](auto& layout) { AddUnknown(*layout.mutable_flat_parameters(0)); },
       }) {
    v1::RankLayout later = whole;
    add(later);
    EXPECT_THAT(FromProto(later), FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
    EXPECT_THAT(FromProto(later), Says("a field 99 that this daemon does not know; update the daemon"));
  }
  v1::DtypePolicy policy;
  ASSERT_OK(FromProto(policy));
  AddUnknown(policy);
  EXPECT_THAT(FromProto(policy), Says("dtype policy has a field 99"));
}

TEST(ConvertLayout, SortsTargetsByName) {
  RankLayout layout = RichLayout();
  std::swap(layout.targets[0], layout.targets[2]);
  ASSERT_OK_AND_ASSIGN(const RankLayout back, FromProto(ToProto(layout)));
  EXPECT_EQ(LayoutDigest(back), LayoutDigest(RichLayout()));
}

TEST(ConvertLayout, RefusesAnOptionalTensorThatIsNone) {
  v1::RankLayout message = ToProto(RichLayout());
  message.add_optional_tensors(5);
  EXPECT_THAT(FromProto(message), FailsWith(absl::StatusCode::kInvalidArgument,
                                            reason::kLayoutInvalid));
}

TEST(ConvertLayout, RefusesFlatParametersWhoseMembersAreNone) {
  const auto invalid = FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid);
  v1::RankLayout message = ToProto(RichLayout());
  message.mutable_flat_parameters(0)->set_tensors(0, 5);
  EXPECT_THAT(FromProto(message), invalid);
  message = ToProto(RichLayout());
  message.mutable_flat_parameters(0)->set_tensors(0, message.flat_parameters(0).tensors(1));
  EXPECT_THAT(FromProto(message), invalid);
  message = ToProto(RichLayout());
  message.mutable_flat_parameters(0)->add_begins(1);
  EXPECT_THAT(FromProto(message), invalid);
  message = ToProto(RichLayout());
  for (int i = 0; i < message.names_size(); ++i) message.add_flat_parameters()->set_name("more");
  EXPECT_THAT(FromProto(message), invalid);
}

TEST(ConvertLayout, TellsLayoutsApartByTheirFlatParameters) {
  const uint64_t digest = LayoutDigest(RichLayout());
  RankLayout other = RichLayout();
  other.targets[3].flat->begin = 5;
  EXPECT_NE(LayoutDigest(other), digest);
  other = RichLayout();
  other.flats[0].elements = 13;
  EXPECT_NE(LayoutDigest(other), digest);
}

TEST(ConvertLayout, TellsLayoutsApartByWhatTheyAllow) {
  const uint64_t digest = LayoutDigest(RichLayout());
  RankLayout other = RichLayout();
  other.skip_missing = false;
  EXPECT_NE(LayoutDigest(other), digest);
  other = RichLayout();
  other.refuse_unexpected = false;
  EXPECT_NE(LayoutDigest(other), digest);
  other = RichLayout();
  other.targets[2].optional = false;
  EXPECT_NE(LayoutDigest(other), digest);
}

TEST(ConvertProposal, KeepsTheRequest) {
  LoadRequest request = RankRequest(1, 2);
  request.policy = {Dtype::kBF16, {"*.norm.*"}};
  request.intended = AttachMode::kExclusive;
  request.kind = HandleKind::kCudaIpc;
  request.digests = false;
  request.timeout = std::chrono::milliseconds(1500);
  request.wait_memory = std::chrono::milliseconds(700);
  request.job = "job";
  request.proposal_id = "proposal";
  request.guest = Caller{1001, 5, {6, 7}};
  request.passed = true;
  ASSERT_OK_AND_ASSIGN(const LoadRequest back, FromProto(ToProto(1, request)));
  EXPECT_EQ(back.wait_memory, request.wait_memory);
  EXPECT_EQ(back.job, request.job);
  EXPECT_EQ(back.proposal_id, request.proposal_id);
  EXPECT_EQ(back.guest, request.guest);
  EXPECT_TRUE(back.passed);
  EXPECT_EQ(RequestDigest(back), RequestDigest(request));
  EXPECT_EQ(back.kind, request.kind);
  EXPECT_EQ(back.timeout, request.timeout);
}

TEST(ConvertProposal, KeepsTheRules) {
  const LoadRequest request = RuleRequest("hsdp:2x4");
  EXPECT_EQ(RequestDigest(FromProto(ToProto(1, request)).value()), RequestDigest(request));
}

PrepareCall RichCall() {
  PrepareCall call = CallOf("checkpoints/a", RankRequest(1, 2));
  call.members_read = true;
  call.unmapped = true;
  CheckpointIndex index = *call.index;
  const auto entry = [](const char* name, Dtype dtype, Shape shape, std::vector<Piece> pieces) {
    TensorEntry made;
    made.name = name;
    made.dtype = dtype;
    made.shape = std::move(shape);
    made.pieces = std::move(pieces);
    return made;
  };
  index.tensors = {entry("a", Dtype::kF32, {2, 3}, {{0, 8, 24, {{0, 0}, {2, 3}}}}),
                   entry("b", Dtype::kF4, {4}, {{0, 32, 2, {{0}, {4}}}}),
                   entry("c", Dtype::kI64, {}, {{0, 34, 8, {{}, {}}}})};
  index.aliases = {{"tied", "a"}};
  call.index = std::make_shared<const CheckpointIndex>(std::move(index));
  call.epoch = 9;
  call.request.policy = {Dtype::kF16, {"a"}};
  call.request.kind = HandleKind::kVmmFd;
  call.request.guest = Caller{1001, 5, {6, 7}};
  call.request_digests = {3, std::numeric_limits<uint64_t>::max()};
  return call;
}

TEST(ConvertPrepare, KeepsTheCall) {
  const PrepareCall call = RichCall();
  ASSERT_OK_AND_ASSIGN(const PrepareCall back, FromProto(ToProto(call)));
  EXPECT_EQ(back.epoch, call.epoch);
  EXPECT_EQ(back.name, call.name);
  EXPECT_EQ(RequestDigest(back.request), RequestDigest(call.request));
  EXPECT_EQ(back.request.kind, call.request.kind);
  EXPECT_EQ(back.request.guest, call.request.guest);
  EXPECT_EQ(back.rank_digest, call.rank_digest);
  EXPECT_EQ(back.plan_digest, call.plan_digest);
  EXPECT_EQ(back.request_digests, call.request_digests);
  EXPECT_TRUE(back.members_read);
  EXPECT_TRUE(back.unmapped);
}

TEST(ConvertPrepare, KeepsTheIndex) {
  const PrepareCall call = RichCall();
  ASSERT_OK_AND_ASSIGN(const PrepareCall back, FromProto(ToProto(call)));
  EXPECT_EQ(back.index->files, call.index->files);
  EXPECT_EQ(back.index->aliases, call.index->aliases);
  ASSERT_EQ(back.index->tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const TensorEntry& want = call.index->tensors[i];
    const TensorEntry& have = back.index->tensors[i];
    EXPECT_EQ(have.name, want.name);
    EXPECT_EQ(have.dtype, want.dtype);
    EXPECT_EQ(have.shape, want.shape);
    EXPECT_EQ(have.pieces[0].offset, want.pieces[0].offset);
    EXPECT_EQ(have.pieces[0].bytes, want.pieces[0].bytes);
    EXPECT_EQ(have.pieces[0].box, want.pieces[0].box);
  }
}

// Of a file with 100,000 of them they would be half of the message.
TEST(ConvertPrepare, SendsNoColumnsForWhatIsSoByDefault) {
  const v1::PrepareRequest sent = ToProto(RichCall());
  EXPECT_EQ(sent.index().tensors().files_size(), 3);
  EXPECT_EQ(sent.index().tensors().piece_counts_size(), 0);
  EXPECT_EQ(sent.index().tensors().boxed_pieces_size(), 0);
  EXPECT_EQ(sent.index().tensors().strided_pieces_size(), 0);
  EXPECT_EQ(sent.index().tensors().kinds_size(), 0);
  EXPECT_EQ(sent.index().tensors().group_of_size(), 0);
  EXPECT_EQ(sent.index().tensors().bytes_size(), 0);
}

TEST(ConvertPrepare, KeepsTheReply) {
  PrepareReply reply;
  reply.resident = true;
  reply.rank_digest = 5;
  reply.segments = {{1, 100}, {2, 50}};
  reply.memory_endpoint = "/run/x";
  reply.owned_segments = {1, 2, 3};
  reply.communicator = "NCCL 2.30.7";
  reply.no_communicator = "none";
  reply.communicator_id = std::string("\0\xff", 2);
  reply.has_leases = true;
  const PrepareReply back = FromProto(ToProto(reply));
  EXPECT_TRUE(back.resident);
  EXPECT_EQ(back.rank_digest, 5u);
  ASSERT_EQ(back.segments.size(), 2u);
  EXPECT_EQ(back.segments[1].id, 2u);
  EXPECT_EQ(back.segments[1].bytes, 50u);
  EXPECT_EQ(back.memory_endpoint, "/run/x");
  EXPECT_EQ(back.owned_segments, reply.owned_segments);
  EXPECT_EQ(back.communicator, reply.communicator);
  EXPECT_EQ(back.no_communicator, reply.no_communicator);
  EXPECT_EQ(back.communicator_id, reply.communicator_id);
  EXPECT_TRUE(back.has_leases);
}

TEST(ConvertCommit, KeepsTheCallAndItsProgress) {
  CommitCall call = CommitOf("checkpoints/a");
  call.tensor_bytes = 77;
  call.progress.stage = Stage::kPublishing;
  call.progress.waiting_ranks = {3};
  call.progress.conflict = "rank 3 loads /other";
  call.progress.slowest_rank = -1;
  call.progress.read = {3, 2, 1};
  call.progress.slowest_file = {"/m/a", 2.5};
  call.progress.stages = {{Stage::kOpening, std::chrono::nanoseconds(1'500'000'001)}};
  const CommitCall back = FromProto(ToProto(call));
  EXPECT_EQ(back.name, call.name);
  EXPECT_EQ(back.tensor_bytes, 77u);
  EXPECT_EQ(back.digests, call.digests);
  EXPECT_EQ(back.progress.stage, Stage::kPublishing);
  EXPECT_EQ(back.progress.waiting_ranks, call.progress.waiting_ranks);
  EXPECT_EQ(back.progress.conflict, call.progress.conflict);
  EXPECT_EQ(back.progress.slowest_rank, -1);
  EXPECT_EQ(back.progress.slowest_file.path, "/m/a");
  EXPECT_EQ(back.progress.slowest_file.bytes_per_second, 2.5);
  EXPECT_EQ(back.progress.read.storage_bytes, 3u);
  EXPECT_EQ(back.progress.read.mapped_bytes, 2u);
  EXPECT_EQ(back.progress.read.direct_bytes, 1u);
  EXPECT_EQ(back.progress.stages, call.progress.stages);
}

TEST(ConvertJoin, KeepsTheIdentityAndTheResidents) {
  MemberIdentity who{"job", "1.0", 3, 4, "one", "host:1", "boot", 77};
  const ResidentCheckpoint resident{"checkpoints/a", 5, {{"/m/a", 1, "2", "3", "4", -6, 5}}, {6, 7}};
  const v1::JoinRequest request = ToProto(who, {resident});
  EXPECT_EQ(IdentityFrom(request).rank, 3u);
  EXPECT_EQ(IdentityFrom(request).incarnation, "one");
  EXPECT_EQ(IdentityFrom(request).host, "boot");
  const auto residents = ResidentsFrom(request);
  ASSERT_EQ(residents.size(), 1u);
  EXPECT_EQ(residents[0].load_key, 5u);
  EXPECT_EQ(residents[0].files, resident.files);
  EXPECT_EQ(residents[0].request_digests, resident.request_digests);
}

// The receiver's copy of `sent`. Empty if protobuf refuses it.
template <typename Message>
Message Received(const Message& sent) {
  Message received;
  EXPECT_TRUE(received.ParseFromString(sent.SerializeAsString()));
  return received;
}

TEST(ConvertPaths, OnesThatAreNotUtf8ArriveAsTheyAre) {
  const std::string odd = "/models/%41\xff";
  LoadRequest request = RankRequest(1, 2);
  request.source = odd;
  EXPECT_EQ(FromProto(Received(ToProto(1, request))).value().source, odd);

  PrepareCall call = RichCall();
  call.request.source = odd;
  CheckpointIndex index = *call.index;
  index.source = odd;
  index.files[0].path = odd;
  call.index = std::make_shared<const CheckpointIndex>(index);
  const PrepareCall back = FromProto(Received(ToProto(call))).value();
  EXPECT_EQ(back.request.source, odd);
  EXPECT_EQ(back.index->source, odd);
  EXPECT_EQ(back.index->files, index.files);

  const ResidentCheckpoint resident{"checkpoints/a", 5, {{odd, 1, "2", "3", "4", -6, 5}}, {6, 7}};
  const v1::JoinRequest join = ToProto(MemberIdentity{}, {resident});
  EXPECT_EQ(ResidentsFrom(Received(join))[0].files, resident.files);
}

TEST(ConvertPaths, OnesThatAreNotUtf8AreShownAsUris) {
  CheckpointInfo info;
  info.source = "/models/\xff";
  EXPECT_EQ(Received(ToProto(info)).source(), "file:///models/%FF");
  CheckpointIndex index;
  index.source = info.source;
  index.files.emplace_back().path = info.source;
  const v1::InspectCheckpointResponse page = Received(InspectPage(index, "", 0).value());
  EXPECT_EQ(page.index().source(), "file:///models/%FF");
  EXPECT_EQ(page.index().files(0).path(), "file:///models/%FF");
}

TEST(ConvertPaths, AFileUriIsASource) {
  v1::LoadSpec spec;
  spec.set_source("file:///models/a%20b");
  spec.mutable_layout()->set_rules("fsdp:2");
  EXPECT_EQ(FromProto(spec).value().source, "/models/a b");
  v1::PlanLoadRequest plan;
  plan.mutable_spec()->set_source(spec.source());
  plan.mutable_device_map()->set_way(v1::DeviceMapRules::WAY_BALANCED);
  plan.mutable_device_map()->set_max_memory("0=10");
  EXPECT_EQ(DeviceMapRequestFrom(plan).value().source, "/models/a b");
}

TEST(ConvertDeviceMap, KeepsWhatIsAskedFor) {
  v1::PlanLoadRequest request;
  request.mutable_spec()->set_source("/m");
  request.mutable_spec()->mutable_dtype_policy()->set_cast_to(v1::DTYPE_BF16);
  v1::DeviceMapRules& rules = *request.mutable_device_map();
  rules.set_way(v1::DeviceMapRules::WAY_BALANCED_LOW_0);
  rules.set_max_memory("0=10,cpu=1KB");
  rules.add_no_split("h.*");
  rules.add_order("a");
  rules.add_order("b");
  (*rules.mutable_tied())["head"] = "emb";
  ASSERT_OK_AND_ASSIGN(const DeviceMapRequest asked, DeviceMapRequestFrom(request));
  EXPECT_EQ(asked.source, "/m");
  EXPECT_EQ(asked.tree.dtypes.cast_to, Dtype::kBF16);
  EXPECT_THAT(asked.tree.order, ElementsAre("a", "b"));
  EXPECT_EQ(asked.tree.tied.at("head"), "emb");
  EXPECT_EQ(asked.devices.way, DeviceMapWay::kBalancedLowZero);
  EXPECT_THAT(asked.devices.no_split, ElementsAre("h.*"));
  ASSERT_GE(asked.devices.max_memory.size(), 2u);
  EXPECT_EQ(asked.devices.max_memory[1].bits, 8000);
}

TEST(ConvertDeviceMap, RefusesWhatItDoesNotKnow) {
  const auto refused = FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest);
  v1::PlanLoadRequest request;
  request.mutable_spec()->set_source("/m");
  request.mutable_device_map()->set_max_memory("cpu=1KB");
  ASSERT_OK(DeviceMapRequestFrom(request).status());
  v1::PlanLoadRequest layout = request;
  layout.mutable_spec()->mutable_layout()->set_rules("fsdp:2");
  EXPECT_THAT(DeviceMapRequestFrom(layout).status(), refused);
  v1::PlanLoadRequest memory = request;
  memory.mutable_device_map()->set_max_memory("gpu=1KB");
  EXPECT_THAT(DeviceMapRequestFrom(memory).status(), refused);
  request.mutable_device_map()->set_way(static_cast<v1::DeviceMapRules::Way>(9));
  EXPECT_THAT(DeviceMapRequestFrom(request).status(), refused);
}

TEST(ConvertHeartbeat, KeepsWhatAMemberReads) {
  HeartbeatCall call{3, "one", 8, ReadingNow{"checkpoints/a", {}, true}};
  call.reading->done.read.storage_bytes = 70;
  call.reading->done.filled = {{2, 40, true, {}}};
  const HeartbeatCall back = FromProto(ToProto(call));
  EXPECT_EQ(back.rank, 3u);
  EXPECT_EQ(back.incarnation, "one");
  EXPECT_EQ(back.members_epoch, 8u);
  ASSERT_TRUE(back.reading.has_value());
  EXPECT_EQ(back.reading->name, "checkpoints/a");
  EXPECT_EQ(back.reading->done.read.storage_bytes, 70u);
  ASSERT_EQ(back.reading->done.filled.size(), 1u);
  EXPECT_EQ(back.reading->done.filled[0].bytes, 40u);
  EXPECT_TRUE(back.reading->done.filled[0].streamed);
  EXPECT_TRUE(back.reading->ended);
  call.reading.reset();
  EXPECT_FALSE(FromProto(ToProto(call)).reading.has_value());
}

TEST(ConvertHeartbeat, KeepsTheAnswer) {
  HeartbeatReply reply;
  reply.epoch = 4;
  reply.missing_ranks = {1};
  reply.loads = {{"checkpoints/a", {}}};
  reply.members = {{0, "leader"}, {2, "two"}};
  const HeartbeatReply back = FromProto(ToProto(reply));
  EXPECT_EQ(back.epoch, 4u);
  EXPECT_EQ(back.missing_ranks, reply.missing_ranks);
  EXPECT_EQ(back.loads.at(0).first, "checkpoints/a");
  EXPECT_EQ(back.members, reply.members);
}

TEST(ConvertFailure, KeepsCodeReasonSentenceAndRank) {
  const absl::Status why = MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                                     "rank 2: too small", {{"rank", "2"}});
  const v1::Failure failure = ToFailure(why);
  EXPECT_EQ(failure.rank(), 2);
  EXPECT_EQ(FromFailure(failure, FactsOf(why)), why);
}

TEST(ConvertFailure, ACodeThatIsNoneBecomesInternal) {
  v1::Failure failure;
  for (const int code : {0, -1, 17, 1 << 30}) {
    failure.set_code(code);
    EXPECT_EQ(FromFailure(failure, {}).code(), absl::StatusCode::kInternal) << code;
  }
}

TEST(ConvertFailure, BytesThatAreNoTextCanStillBeSent) {
  const v1::Failure failure = ToFailure(absl::InternalError("opening /m/\xff"));
  v1::Failure back;
  ASSERT_TRUE(back.ParseFromString(failure.SerializeAsString()));
  EXPECT_EQ(back.message(), "opening /m/?");
}

TEST(ConvertCheckpoint, ShowsTheFailureOfAFailedOneAlone) {
  CheckpointInfo info;
  info.failure = MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound, "gone");
  EXPECT_FALSE(ToProto(info).has_failure());
  info.state = CheckpointState::kFailed;
  EXPECT_EQ(ToProto(info).failure().reason(), reason::kSourceNotFound);
}

}  // namespace
}  // namespace ckptd

// Messages that no client of ours would send must be errors, never crashes.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "common/base/reasons.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

// A valid request with one tensor "w" of shape [4], which tests corrupt.
class HostileLayout : public ::testing::Test {
 protected:
  HostileLayout() {
    layout_.set_world_size(2);
    layout_.add_shardings();
    layout_.add_names("w");
    layout_.add_sharding_of(0);
    layout_.add_dtypes(v1::Dtype::DTYPE_UNSPECIFIED);
    layout_.add_ranks_of_shape(1);
    layout_.add_dims(4);
  }
  void ExpectRefused() {
    EXPECT_THAT(FromProto(layout_), FailsWith(kInvalidArgument, reason::kLayoutInvalid));
  }

  v1::RankLayout layout_;
};

TEST_F(HostileLayout, IsAcceptedUnspoiled) { EXPECT_OK(FromProto(layout_)); }

TEST_F(HostileLayout, RefusesANameTooMany) {
  layout_.add_names("v");
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesAShardingTooMany) {
  layout_.add_sharding_of(0);
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesADtypeTooMany) {
  layout_.add_dtypes(v1::Dtype::DTYPE_UNSPECIFIED);
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesAShapeTooMany) {
  layout_.add_ranks_of_shape(0);
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesDimsThatNoShapeUses) {
  layout_.add_dims(4);
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesAShapeThatIsCutShort) {
  for (const uint32_t dims : {2u, 1u << 31, std::numeric_limits<uint32_t>::max()}) {
    layout_.set_ranks_of_shape(0, dims);
    ExpectRefused();
  }
}

TEST_F(HostileLayout, RefusesAShardingThatIsNotThere) {
  layout_.set_sharding_of(0, 1);
  ExpectRefused();
  layout_.set_sharding_of(0, std::numeric_limits<uint32_t>::max());
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesDtypesThatAreNone) {
  for (const int dtype : {-1, static_cast<int>(kDtypeCount), std::numeric_limits<int>::max()}) {
    layout_.set_dtypes(0, static_cast<v1::Dtype>(dtype));
    ExpectRefused();
  }
}

TEST_F(HostileLayout, RefusesAnAliasOfATensorThatIsNotThere) {
  layout_.add_alias_names("x");
  layout_.add_alias_tensors(1);
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesAnAliasWithoutATensor) {
  layout_.add_alias_names("x");
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesRanksOutsideOfTheirWorld) {
  for (const auto& [rank, world] : {std::pair<int, int>{-1, 2}, {2, 2}, {0, 0}, {0, -1}}) {
    layout_.set_rank(rank);
    layout_.set_world_size(world);
    ExpectRefused();
  }
}

TEST_F(HostileLayout, RefusesAPlacementKindThatIsNone) {
  layout_.mutable_shardings(0)->add_placements()->set_kind(static_cast<v1::Placement::Kind>(99));
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesANameOfManyKilobytes) {
  layout_.set_names(0, std::string(100'000, 'n'));
  ExpectRefused();
}

TEST(HostileRequest, RefusesARequestWithoutALayout) {
  EXPECT_THAT(FromProto(v1::LoadCheckpointRequest()),
              FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(HostileRequest, RefusesAnAttachModeThatIsNone) {
  v1::LoadCheckpointRequest request;
  request.mutable_layout()->set_rules("replicate:1");
  request.set_intended_mode(static_cast<v1::AttachMode>(77));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(HostileRequest, RefusesAKindOfHandleThatIsNone) {
  v1::LoadCheckpointRequest request;
  request.mutable_layout()->set_rules("replicate:1");
  request.set_handle_kind(static_cast<v1::HandleKind>(77));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(HostileRequest, RefusesACastToATypeThatIsNone) {
  v1::LoadCheckpointRequest request;
  request.mutable_layout()->set_rules("replicate:1");
  request.mutable_dtype_policy()->set_cast_to(static_cast<v1::Dtype>(-5));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(HostileRequest, RefusesACastThatIsNotSupported) {
  v1::LoadCheckpointRequest request;
  request.mutable_layout()->set_rules("replicate:1");
  request.mutable_dtype_policy()->set_cast_to(static_cast<v1::Dtype>(Dtype::kI64));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(HostileRequest, TimeoutsStayBetweenAMillisecondAndADay) {
  v1::LoadCheckpointRequest request;
  request.mutable_layout()->set_rules("replicate:1");
  request.mutable_timeout()->set_seconds(kHuge);
  request.mutable_timeout()->set_nanos(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(FromProto(request)->timeout, std::chrono::hours(24));
  request.mutable_timeout()->set_seconds(-kHuge - 1);
  EXPECT_EQ(FromProto(request)->timeout, std::chrono::milliseconds(1));
}

TEST(HostileDuration, DoesNotOverflow) {
  google::protobuf::Duration duration;
  duration.set_seconds(kHuge);
  duration.set_nanos(std::numeric_limits<int32_t>::max());
  EXPECT_GT(FromProto(duration), std::chrono::hours(24 * 365));
  duration.set_seconds(-kHuge - 1);
  duration.set_nanos(std::numeric_limits<int32_t>::min());
  EXPECT_LT(FromProto(duration), -std::chrono::hours(24 * 365));
}

TEST(HostileDuration, IsBoundedOnce) {
  google::protobuf::Duration duration;
  for (const int64_t seconds : {kHuge, -kHuge}) {
    duration.set_seconds(seconds);
    duration.set_nanos(seconds > 0 ? std::numeric_limits<int32_t>::max()
                                   : std::numeric_limits<int32_t>::min());
    const std::chrono::nanoseconds bounded = FromProto(duration);
    EXPECT_EQ(FromProto(ToProto(bounded)), bounded);
  }
}

TEST(HostileJoin, SignsOfLifeAreAskedForAtARateThatSettingsAllow) {
  v1::JoinResponse response = ToProto(JoinReply{});
  EXPECT_EQ(FromProto(response).heartbeat_interval, JoinReply{}.heartbeat_interval);
  EXPECT_EQ(FromProto(response).heartbeat_timeout, JoinReply{}.heartbeat_timeout);
  response.mutable_heartbeat_interval()->set_seconds(-kHuge);
  response.mutable_heartbeat_timeout()->set_seconds(0);
  EXPECT_EQ(FromProto(response).heartbeat_interval, std::chrono::milliseconds(10));
  EXPECT_EQ(FromProto(response).heartbeat_timeout, std::chrono::milliseconds(20));
  response.mutable_heartbeat_interval()->set_seconds(kHuge);
  response.mutable_heartbeat_timeout()->set_seconds(kHuge);
  EXPECT_EQ(FromProto(response).heartbeat_interval, std::chrono::minutes(30));
  EXPECT_EQ(FromProto(response).heartbeat_timeout, std::chrono::hours(1));
}

TEST(HostileProgress, AStageThatIsNoneIsUnspecified) {
  v1::Progress progress;
  progress.set_stage(static_cast<v1::Stage>(77));
  EXPECT_EQ(FromProto(progress).stage, Stage::kUnspecified);
}

class HostilePrepare : public ::testing::Test {
 protected:
  HostilePrepare() {
    PrepareCall call = CallOf("checkpoints/a", RuleRequest());
    CheckpointIndex index = *call.index;
    index.tensors = {{"a", Dtype::kF32, {2, 3}, {{0, 8, 24, {{0, 0}, {2, 3}}}}}};
    call.index = std::make_shared<const CheckpointIndex>(std::move(index));
    request_ = ToProto(call);
  }
  void ExpectRefused() {
    EXPECT_THAT(FromProto(request_), FailsWith(kInvalidArgument, reason::kInvalidRequest));
  }

  v1::PrepareRequest request_;
};

TEST_F(HostilePrepare, IsAcceptedUnspoiled) { EXPECT_OK(FromProto(request_)); }

TEST_F(HostilePrepare, RefusesColumnsOfDifferentLengths) {
  const v1::PrepareRequest good = request_;
  request_.add_names("b");
  ExpectRefused();
  request_ = good;
  request_.add_dtypes(v1::Dtype::DTYPE_UNSPECIFIED);
  ExpectRefused();
  request_ = good;
  request_.add_ranks_of_shape(0);
  ExpectRefused();
  request_ = good;
  request_.add_piece_files(0);
  ExpectRefused();
  request_ = good;
  request_.add_piece_offsets(0);
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesAPieceOfAFileThatIsNotThere) {
  request_.set_piece_files(0, 1);
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesAShapeThatIsCutShort) {
  request_.set_ranks_of_shape(0, std::numeric_limits<uint32_t>::max());
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesATensorWithoutADtype) {
  request_.set_dtypes(0, v1::Dtype::DTYPE_UNSPECIFIED);
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesARequestThatIsNotTheOneItsKeySays) {
  request_.set_source("/another/source");
  ExpectRefused();
}

TEST(PageToken, RefusesWhatNoPageGave) {
  for (const char* token : {"-1", "x", "1x", " 1", "11", "99999999999999999999999"}) {
    EXPECT_THAT(PositionFrom(token, 10), FailsWith(kInvalidArgument, reason::kInvalidRequest))
        << token;
  }
}

TEST(PageToken, NoneBeginsAtTheStart) { EXPECT_EQ(PositionFrom("", 10).value(), 0u); }

}  // namespace
}  // namespace ckptd

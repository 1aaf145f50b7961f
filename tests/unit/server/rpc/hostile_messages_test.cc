// Messages that no client of ours would send must be errors, never crashes.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
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

TEST_F(HostileLayout, RefusesShardingsThatNoTensorCanHave) {
  for (int i = 0; i < 66; ++i) layout_.add_shardings();
  ExpectRefused();
}

TEST_F(HostileLayout, RefusesMeshesThatNoShardingCanHave) {
  for (int i = 0; i < 66; ++i) layout_.add_meshes();
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
  EXPECT_THAT(FromProto(v1::LoadSpec()),
              FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(HostileRequest, RefusesAnAttachModeThatIsNone) {
  v1::LoadSpec request;
  request.mutable_layout()->set_rules("replicate:1");
  request.set_intended_mode(static_cast<v1::AttachMode>(77));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(HostileRequest, RefusesAKindOfHandleThatIsNone) {
  v1::LoadSpec request;
  request.mutable_layout()->set_rules("replicate:1");
  request.set_handle_kind(static_cast<v1::HandleKind>(77));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(HostileRequest, RefusesACastToATypeThatIsNone) {
  v1::LoadSpec request;
  request.mutable_layout()->set_rules("replicate:1");
  request.mutable_dtype_policy()->set_cast_to(static_cast<v1::Dtype>(-5));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(HostileRequest, RefusesACastThatIsNotSupported) {
  v1::LoadSpec request;
  request.mutable_layout()->set_rules("replicate:1");
  request.mutable_dtype_policy()->set_cast_to(static_cast<v1::Dtype>(Dtype::kI64));
  EXPECT_THAT(FromProto(request), FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(HostileRequest, TimeoutsStayBetweenAMillisecondAndADay) {
  v1::LoadSpec request;
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
    index.tensors = {{.name = "a",
                      .dtype = Dtype::kF32,
                      .shape = {2, 3},
                      .pieces = {{0, 8, 24, {{0, 0}, {2, 3}}}}}};
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
  using Spoil = void (*)(v1::SourceTable&);
  const v1::PrepareRequest good = request_;
  for (const Spoil spoil : std::initializer_list<Spoil>{
           [](v1::SourceTable& t) { t.add_names("b"); },
           [](v1::SourceTable& t) { t.add_dtypes(v1::Dtype::DTYPE_U8); },
           [](v1::SourceTable& t) { t.add_ranks_of_shape(0); },
           [](v1::SourceTable& t) { t.add_dims(1); },
           [](v1::SourceTable& t) { t.add_files(0); },
           [](v1::SourceTable& t) { t.add_offsets(0); },
           [](v1::SourceTable& t) { t.add_alias_names("c"); },
           [](v1::SourceTable& t) { t.mutable_bytes()->Resize(2, 24); },
           [](v1::SourceTable& t) { t.mutable_piece_counts()->Resize(2, 1); },
           [](v1::SourceTable& t) { t.mutable_kinds()->Resize(2, 1); },
           [](v1::SourceTable& t) { t.mutable_group_of()->Resize(2, 0); },
           [](v1::SourceTable& t) { t.add_big_endian(1); },
           [](v1::SourceTable& t) { t.add_negates_real(1); },
           [](v1::SourceTable& t) { t.add_negates_imaginary(1); },
           [](v1::SourceTable& t) { t.mutable_big_endian()->Resize(2, 0); },
           [](v1::SourceTable& t) { t.add_boxed_pieces(0); },
           [](v1::SourceTable& t) { t.add_boxed_pieces(1); },
           [](v1::SourceTable& t) { t.add_boxes(0); },
           [](v1::SourceTable& t) { t.add_strided_pieces(0); },
           [](v1::SourceTable& t) { t.add_strides(0); }}) {
    request_ = good;
    spoil(*request_.mutable_index()->mutable_tensors());
    ExpectRefused();
  }
}

TEST_F(HostilePrepare, RefusesAPieceOfAFileThatIsNotThere) {
  request_.mutable_index()->mutable_tensors()->set_files(0, 1);
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesAPieceThatLeavesItsFile) {
  request_.mutable_index()->mutable_tensors()->set_offsets(0, 77);
  ExpectRefused();
  request_.mutable_index()->mutable_tensors()->set_offsets(0, std::numeric_limits<uint64_t>::max());
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesMorePiecesThanAreListed) {
  for (const uint32_t count : {0u, 2u, std::numeric_limits<uint32_t>::max()}) {
    request_.mutable_index()->mutable_tensors()->mutable_piece_counts()->Clear();
    request_.mutable_index()->mutable_tensors()->add_piece_counts(count);
    ExpectRefused();
  }
}

TEST_F(HostilePrepare, RefusesSeveralPiecesWithoutBoxes) {
  v1::SourceTable& table = *request_.mutable_index()->mutable_tensors();
  table.add_files(0);
  table.add_offsets(8);
  table.add_piece_counts(2);
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesABoxThatLeavesItsTensor) {
  v1::SourceTable& table = *request_.mutable_index()->mutable_tensors();
  table.add_boxed_pieces(0);
  for (const uint64_t value : {0, 0, 2, 3}) table.add_boxes(value);
  EXPECT_OK(FromProto(request_));
  for (int i = 0; i < 4; ++i) {
    const uint64_t good = table.boxes(i);
    table.set_boxes(i, std::numeric_limits<uint64_t>::max());
    ExpectRefused();
    table.set_boxes(i, good);
  }
}

TEST_F(HostilePrepare, RefusesStridesThatLeaveTheFile) {
  v1::SourceTable& table = *request_.mutable_index()->mutable_tensors();
  table.add_strided_pieces(0);
  table.add_strides(1);
  table.add_strides(2);
  EXPECT_OK(FromProto(request_));
  for (const uint64_t stride : {uint64_t{11}, uint64_t{1} << 62, ~uint64_t{0}}) {
    table.set_strides(1, stride);
    ExpectRefused();
  }
}

TEST_F(HostilePrepare, RefusesAKindOrAGroupThatIsNone) {
  const v1::PrepareRequest good = request_;
  request_.mutable_index()->mutable_tensors()->add_kinds(static_cast<v1::EntryKind>(5));
  ExpectRefused();
  request_ = good;
  request_.mutable_index()->mutable_tensors()->add_kinds(static_cast<v1::EntryKind>(-1));
  ExpectRefused();
  request_ = good;
  request_.mutable_index()->mutable_tensors()->add_group_of(0);
  ExpectRefused();
  for (int i = 0; i < 1001; ++i) request_.mutable_index()->mutable_tensors()->add_groups(std::to_string(i));
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesAShapeThatIsCutShort) {
  request_.mutable_index()->mutable_tensors()->set_ranks_of_shape(0, std::numeric_limits<uint32_t>::max());
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesATensorWithoutADtype) {
  request_.mutable_index()->mutable_tensors()->set_dtypes(0, v1::Dtype::DTYPE_UNSPECIFIED);
  ExpectRefused();
}

TEST_F(HostilePrepare, RefusesARequestThatIsNotTheOneItsKeySays) {
  request_.mutable_spec()->set_source("/another/source");
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

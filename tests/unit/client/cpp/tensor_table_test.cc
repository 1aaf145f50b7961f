// Which tensor tables the client accepts, and which it refuses.
#include <gtest/gtest.h>

#include <functional>

#include "client/cpp/convert.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr uint64_t kSlabBytes = 4096;

v1::TensorTable OneTensor() {
  v1::TensorTable table;
  table.add_names("w");
  table.add_dtypes(v1::DTYPE_BF16);
  table.add_ranks_of_shape(2);
  table.add_dims(3);
  table.add_dims(5);
  table.add_offsets(512);
  table.add_bytes(30);
  table.add_padded_bytes(40);
  return table;
}

absl::Status Append(const std::function<void(v1::TensorTable&)>& bend) {
  v1::TensorTable table = OneTensor();
  bend(table);
  ShardTable out;
  return AppendTensors(table, kSlabBytes, out);
}

TEST(TensorTable, IsTakenOverAsItIs) {
  ShardTable out;
  ASSERT_OK(AppendTensors(OneTensor(), kSlabBytes, out));
  ASSERT_EQ(out.tensors.size(), 1U);
  EXPECT_EQ(out.tensors[0].name, "w");
  EXPECT_EQ(out.tensors[0].dtype, Dtype::kBF16);
  EXPECT_EQ(out.tensors[0].shape, (Shape{3, 5}));
  EXPECT_EQ(out.tensors[0].padded_bytes, 40U);
  EXPECT_FALSE(out.tensors[0].digest.has_value());
}

TEST(TensorTable, MayEndAtTheLastByteOfTheSlabButNotPastIt) {
  EXPECT_OK(Append([](auto& t) { t.set_padded_bytes(0, kSlabBytes - 512); }));
  EXPECT_THAT(Append([](auto& t) { t.set_padded_bytes(0, kSlabBytes - 511); }),
              FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST(TensorTable, IsRefusedWhenAnOffsetWrapsAround) {
  EXPECT_THAT(Append([](auto& t) { t.set_offsets(0, UINT64_MAX - 511); }),
              FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST(TensorTable, IsRefusedWhenATensorIsNotAligned) {
  EXPECT_THAT(Append([](auto& t) { t.set_offsets(0, 513); }),
              FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST(TensorTable, IsRefusedWhenBytesDoNotFollowFromTheShape) {
  EXPECT_THAT(Append([](auto& t) { t.set_bytes(0, 28); }), Says("dtype and shape"));
}

TEST(TensorTable, IsRefusedWhenAShapeOverflows) {
  EXPECT_THAT(Append([](auto& t) { t.set_dims(0, uint64_t{1} << 62); }), Says("dtype and shape"));
}

TEST(TensorTable, IsRefusedWhenPaddingIsLessThanTheTensor) {
  EXPECT_THAT(Append([](auto& t) { t.set_padded_bytes(0, 29); }),
              FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST(TensorTable, IsRefusedWhenADtypeIsUnknown) {
  EXPECT_THAT(Append([](auto& t) { t.set_dtypes(0, static_cast<v1::Dtype>(23)); }), Says("dtype"));
  EXPECT_THAT(Append([](auto& t) { t.set_dtypes(0, v1::DTYPE_UNSPECIFIED); }), Says("dtype"));
}

TEST(TensorTable, IsRefusedWhenShapesAreCutOff) {
  EXPECT_THAT(Append([](auto& t) { t.set_ranks_of_shape(0, 3); }), Says("cut off"));
  EXPECT_THAT(Append([](auto& t) { t.set_ranks_of_shape(0, UINT32_MAX); }), Says("cut off"));
}

TEST(TensorTable, IsRefusedWhenShapesAreLeftOver) {
  EXPECT_THAT(Append([](auto& t) { t.add_dims(1); }), Says("more sizes"));
}

TEST(TensorTable, IsRefusedWhenAnyColumnIsShort) {
  const std::vector<std::function<void(v1::TensorTable&)>> cuts = {
      [](auto& t) { t.clear_dtypes(); },       [](auto& t) { t.clear_ranks_of_shape(); },
      [](auto& t) { t.clear_offsets(); },      [](auto& t) { t.clear_bytes(); },
      [](auto& t) { t.clear_padded_bytes(); }, [](auto& t) { t.clear_names(); },
      [](auto& t) { t.add_digests(1); t.add_digests(2); },
      [](auto& t) { t.add_alias_names("x"); }};
  for (size_t i = 0; i < cuts.size(); ++i) EXPECT_THAT(Append(cuts[i]), Says("differ")) << i;
}

TEST(TensorTable, IsRefusedWhenAnAliasNamesNothing) {
  EXPECT_THAT(Append([](auto& t) {
                t.add_alias_names("x");
                t.add_alias_tensors(1);
              }),
              Says("alias x"));
}

TEST(TensorTable, CountsAliasesOfALaterPageFromThatPage) {
  v1::TensorTable second = OneTensor();
  second.set_names(0, "v");
  second.add_alias_names("tied");
  second.add_alias_tensors(0);
  ShardTable out;
  ASSERT_OK(AppendTensors(OneTensor(), kSlabBytes, out));
  ASSERT_OK(AppendTensors(second, kSlabBytes, out));
  ASSERT_EQ(out.aliases.size(), 1U);
  EXPECT_EQ(out.tensors[out.aliases[0].second].name, "v");
}

TEST(TensorTable, IsRefusedWhenAFlatParameterLiesOutsideOfTheSlab) {
  const auto with = [](uint64_t offset, uint64_t elements) {
    return Append([=](auto& t) {
      t.add_flat_names("flat");
      t.add_flat_dtypes(v1::DTYPE_F32);
      t.add_flat_offsets(offset);
      t.add_flat_elements(elements);
    });
  };
  EXPECT_OK(with(0, kSlabBytes / 4));
  const auto refused = FailsWith(kDataLoss, reason::kInvalidReply);
  EXPECT_THAT(with(512, kSlabBytes / 4), refused);
  EXPECT_THAT(with(4, 1), refused);
  EXPECT_THAT(with(0, UINT64_MAX / 2), refused);
  EXPECT_THAT(Append([](auto& t) { t.add_flat_names("flat"); }), refused);
}

TEST(TensorTable, KnowsTheBytesOfSubByteTypes) {
  EXPECT_OK(Append([](auto& t) {
    t.set_dtypes(0, v1::DTYPE_F4);
    t.set_dims(0, 3);
    t.set_dims(1, 4);
    t.set_bytes(0, 6);
  }));
}

TEST(AttachRequestOfAnAnswer, NeedsSegmentsThatMakeUpTheSlab) {
  v1::AcquireShardResponse response;
  response.set_mode(v1::ATTACH_MODE_SHARED);
  response.set_slab_bytes(8192);
  response.mutable_memfd()->add_segment_bytes(4096);
  EXPECT_THAT(ToAttachRequest(response), Says("make up"));
  response.mutable_memfd()->add_segment_bytes(4096);
  EXPECT_OK(ToAttachRequest(response));
  response.mutable_memfd()->add_segment_bytes(UINT64_MAX);
  EXPECT_THAT(ToAttachRequest(response), Says("larger"));
}

TEST(AttachRequestOfAnAnswer, NeedsAKindOfMemoryThatCanBeMapped) {
  v1::AcquireShardResponse response;
  response.set_mode(v1::ATTACH_MODE_SHARED);
  EXPECT_THAT(ToAttachRequest(response), FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST(AttachRequestOfAnAnswer, NeedsADeviceAndAWholeHandleForMemoryThatIsNamed) {
  v1::AcquireShardResponse response;
  response.set_mode(v1::ATTACH_MODE_SHARED);
  response.set_slab_bytes(8192);
  response.mutable_cuda_ipc()->set_allocation_bytes(2 << 20);
  response.mutable_cuda_ipc()->set_handle(std::string(64, 'x'));
  EXPECT_THAT(ToAttachRequest(response), Says("names no device"));
  response.mutable_cuda_ipc()->set_device_uuid("GPU-1");
  EXPECT_OK(ToAttachRequest(response));
  response.mutable_cuda_ipc()->set_handle(std::string(63, 'x'));
  EXPECT_THAT(ToAttachRequest(response), Says("63 bytes"));
  response.mutable_cuda_ipc()->set_handle(std::string(64, 'x'));
  response.mutable_cuda_ipc()->set_allocation_bytes(8191);
  EXPECT_THAT(ToAttachRequest(response), Says("does not fit the slab"));
}

TEST(SourceTable, IsRefusedWhenATensorLiesInAFileThatIsNotListed) {
  v1::InspectCheckpointResponse page;
  page.mutable_index()->add_files()->set_path("/a");
  page.mutable_index()->mutable_files(0)->set_bytes(12);
  v1::SourceTable& table = *page.mutable_index()->mutable_tensors();
  table.add_names("w");
  table.add_dtypes(v1::DTYPE_F32);
  table.add_ranks_of_shape(0);
  table.add_files(0);
  table.add_offsets(8);
  table.add_bytes(4);
  SourceInfo good;
  EXPECT_OK(AppendSource(page, good));
  table.set_files(0, 1);
  SourceInfo bad;
  EXPECT_THAT(AppendSource(page, bad), Says("in a file that is not listed"));
}

TEST(SourceTable, IsNeverOfPagesOfDifferentFiles) {
  v1::InspectCheckpointResponse page;
  page.mutable_index()->add_files()->set_path("/a");
  page.mutable_index()->set_source("/m/a");
  page.set_source_identity("1");
  SourceInfo source;
  ASSERT_OK(AppendSource(page, source));
  EXPECT_EQ(source.identity, "1");
  ASSERT_OK(AppendSource(page, source));
  page.set_source_identity("2");
  EXPECT_THAT(AppendSource(page, source), Says("inspecting /m/a: its files, or their links"));
}

}  // namespace
}  // namespace ckptd

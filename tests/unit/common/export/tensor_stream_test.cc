#include "common/export/tensor_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/registry.h"
#include "tests/testing/pieces_source.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using Bytes = std::vector<std::byte>;

absl::StatusOr<Bytes> All(TensorStream stream) {
  Bytes out;
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(const auto bytes, stream.Next());
    if (bytes.empty()) return out;
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
}

class TensorStreamTest : public ::testing::Test {
 protected:
  // A file of these bytes, as the only one of `index_`.
  void Write(const std::string& bytes) {
    dir_.Write("one", bytes);
    index_.files.resize(1);
    index_.files[0] = OpenObject(dir_ / "one").value()->identity();
  }
  static TensorEntry Tensor(Dtype dtype, Shape shape, Shape strides, uint64_t offset = 0) {
    TensorEntry tensor{.name = "t", .dtype = dtype, .shape = shape};
    Piece piece;
    piece.offset = offset;
    piece.bytes = ElementCount(shape) * BitsOf(dtype) / 8;
    piece.box = {Shape(shape.size(), 0), shape};
    piece.strides = std::move(strides);
    tensor.pieces = {piece};
    return tensor;
  }
  std::string Text(const TensorEntry& tensor, uint64_t block_bytes = 0) {
    OpenFiles files(index_);
    const Bytes all = All(TensorStream(files, tensor, tensor.dtype, block_bytes)).value();
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }

  TempFolder dir_;
  CheckpointIndex index_;
};

TEST_F(TensorStreamTest, GivesEveryTensorInRowMajorOrderHoweverItsPiecesLie) {
  PiecesSource source(7, 300);
  source.Write(dir_.path());
  OpenFiles files(source.index);
  for (const uint64_t block_bytes : {uint64_t{0}, uint64_t{1}, uint64_t{40}}) {
    for (const TensorEntry& tensor : source.index.tensors) {
      const auto bytes = All(TensorStream(files, tensor, tensor.dtype, block_bytes));
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      ASSERT_EQ(*bytes, source.BytesOf(tensor.name)) << tensor.name;
    }
  }
}

TEST_F(TensorStreamTest, ReadsPartsThatExceedItsScratchMemory) {
  PiecesSource source(8, 200);
  source.Write(dir_.path());
  OpenFiles files(source.index);
  BoxReader reader(16);
  for (const TensorEntry& tensor : source.index.tensors) {
    if (tensor.big_endian || SignsOf(tensor) != Signs::kNone) continue;  // it reads bytes as they lie
    Bytes out(source.BytesOf(tensor.name).size());
    for (const Piece& piece : tensor.pieces) {
      if (piece.bytes == 0) continue;
      ASSERT_TRUE(reader
                      .Read(*files.Get(piece.file).value(), piece, BitsOf(tensor.dtype) / 8,
                            {Shape(tensor.shape.size(), 0), tensor.shape}, out)
                      .ok());
    }
    ASSERT_EQ(out, source.BytesOf(tensor.name)) << tensor.name;
  }
}

TEST_F(TensorStreamTest, ReadsColumnsWithoutTheLongGapsBetweenThem) {
  constexpr uint64_t kGap = 200'000;
  std::string bytes(3 * kGap, '.');
  for (size_t i = 0; i < 3; ++i) bytes.replace(i * kGap, 2, {"abcdef" + 2 * i, 2});
  Write(bytes.substr(0, 2 * kGap + 2));
  EXPECT_EQ(Text(Tensor(Dtype::kU8, {2, 3}, {1, kGap})), "acebdf");
}

TEST_F(TensorStreamTest, TurnsNumbersRoundWhoseHighestByteComesFirst) {
  Write("abcdefghijklmnop");
  TensorEntry tensor = Tensor(Dtype::kF32, {2, 2}, {1, 2});
  tensor.big_endian = true;
  EXPECT_EQ(Text(tensor), "dcbalkjihgfeponm");
  tensor = Tensor(Dtype::kC64, {2}, {});
  tensor.big_endian = true;
  EXPECT_EQ(Text(tensor), "dcbahgfelkjiponm");
}

TEST_F(TensorStreamTest, GivesScalarsAndNothingOfTensorsWithoutElements) {
  Write("abcd");
  EXPECT_EQ(Text(Tensor(Dtype::kU8, {}, {}, 2)), "c");
  EXPECT_EQ(Text(Tensor(Dtype::kU8, {4, 0, 2}, {})), "");
}

TEST_F(TensorStreamTest, CastsBlockByBlock) {
  const float numbers[] = {1.0f, -2.5f, 3e38f};
  Write({reinterpret_cast<const char*>(numbers), sizeof(numbers)});
  OpenFiles files(index_);
  const TensorEntry tensor = Tensor(Dtype::kF32, {3}, {});
  const Bytes all = All(TensorStream(files, tensor, Dtype::kBF16, 4)).value();
  ASSERT_EQ(all.size(), 6u);
  uint16_t out[3];
  std::memcpy(out, all.data(), sizeof(out));
  EXPECT_THAT(out, ::testing::ElementsAre(0x3f80, 0xc020, 0x7f62));
}

TEST_F(TensorStreamTest, KeepsElementsOfHalfAByteAsTheyLie) {
  Write("abcdef");
  EXPECT_EQ(Text(Tensor(Dtype::kF4, {2, 4}, {}, 1), 1), "bcde");
}

TEST_F(TensorStreamTest, PutsPairsOfHalvesOfBytesTogether) {
  Write("abcdef");
  // Columns [0, 2) and [2, 6) of two rows.
  TensorEntry tensor = Tensor(Dtype::kF4, {2, 6}, {});
  tensor.pieces[0].box.extents = {2, 2};
  tensor.pieces[0].bytes = 2;
  tensor.pieces.push_back(tensor.pieces[0]);
  tensor.pieces[1].box = {{0, 2}, {2, 4}};
  tensor.pieces[1].offset = 2;
  tensor.pieces[1].bytes = 4;
  EXPECT_EQ(Text(tensor), "acdbef");
  EXPECT_EQ(Text(tensor, 1), "acdbef");
}

TEST_F(TensorStreamTest, RefusesElementsOfLessThanAByteThatBeginWithinOne) {
  Write("abcdef");
  TensorEntry tensor = Tensor(Dtype::kF6E2M3, {8}, {});
  tensor.pieces[0].box.extents = {4};
  tensor.pieces[0].bytes = 3;
  tensor.pieces.push_back(tensor.pieces[0]);
  tensor.pieces[1].box.offsets = {4};
  OpenFiles files(index_);
  const auto bytes = All(TensorStream(files, tensor, tensor.dtype));
  EXPECT_EQ(ReasonOf(bytes.status()), reason::kSourceUnsupported);
}

TEST_F(TensorStreamTest, NamesAFileThatIsAnotherOneNow) {
  Write("abcd");
  dir_.Write("other", "abcd");
  std::filesystem::rename(dir_ / "other", dir_ / "one");
  OpenFiles files(index_);
  const auto bytes = All(TensorStream(files, Tensor(Dtype::kU8, {4}, {}), Dtype::kU8));
  EXPECT_EQ(ReasonOf(bytes.status()), reason::kSourceChanged);
  EXPECT_EQ(FactsOf(bytes.status())["file"], dir_ / "one");
}

TEST(WholePiece, IsOneInOrderAndLittleEndian) {
  TensorEntry tensor{.name = "t", .dtype = Dtype::kF32, .shape = {2, 2}};
  tensor.pieces = {{.bytes = 16, .box = {{0, 0}, {2, 2}}}};
  EXPECT_EQ(WholePiece(tensor), &tensor.pieces[0]);
  tensor.pieces[0].strides = {1, 2};
  EXPECT_EQ(WholePiece(tensor), nullptr);
  tensor.pieces[0].strides = {};
  tensor.big_endian = true;
  EXPECT_EQ(WholePiece(tensor), nullptr);
  tensor.big_endian = false;
  tensor.pieces[0].box.extents = {1, 2};
  EXPECT_EQ(WholePiece(tensor), nullptr);
}

}  // namespace
}  // namespace ckptd

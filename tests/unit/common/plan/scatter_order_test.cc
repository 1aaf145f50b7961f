#include "common/plan/scatter_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/testing/random_source.h"

namespace ckptd {
namespace {

TensorEntry Tensor(const std::string& name, Dtype dtype, uint64_t elements, uint32_t file,
                   uint64_t offset) {
  TensorEntry tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.shape = {elements};
  Piece piece;
  piece.file = file;
  piece.offset = offset;
  piece.bytes = elements * BitsOf(dtype) / 8;
  piece.box = {{0}, {elements}};
  tensor.pieces.push_back(std::move(piece));
  return tensor;
}

class ScatterOrders : public testing::TestWithParam<uint64_t> {};

TEST_P(ScatterOrders, PutEveryByteOfEveryTensorIntoOneStep) {
  const RandomSource source(GetParam(), 60);
  for (const uint64_t bytes : {1, 64, 300, 4096}) {
    const ScatterOrder order = OrderScatter(source.index, {bytes, 1 + GetParam() % 7});
    std::map<std::pair<uint32_t, uint64_t>, int> covered;
    for (const ScatterStep& step : order.steps) {
      ASSERT_LT(step.begin, step.end);
      ASSERT_LT(step.window, order.windows.size());
      for (uint64_t at = step.begin; at < step.end; ++at) ++covered[{step.file, at}];
    }
    for (const auto& [place, times] : covered) ASSERT_EQ(times, 1) << place.second;
    for (const TensorEntry& tensor : source.index.tensors) {
      for (const Piece& piece : tensor.pieces) {
        for (uint64_t at = piece.offset; at < piece.offset + piece.bytes; ++at) {
          ASSERT_EQ((covered.count({piece.file, at})), 1u) << tensor.name;
        }
      }
    }
  }
}

TEST_P(ScatterOrders, KeepEachTensorInOneWindow) {
  const RandomSource source(GetParam(), 60);
  const ScatterOrder order = OrderScatter(source.index, {128, 4});
  for (const TensorEntry& tensor : source.index.tensors) {
    const FilePlace place = PlaceOf(tensor);
    size_t window = 0;
    while (window + 1 < order.windows.size() && order.windows[window + 1] <= place) ++window;
    for (const ScatterStep& step : order.steps) {
      for (const Piece& piece : tensor.pieces) {
        const bool meets = piece.bytes > 0 && step.file == piece.file &&
                           step.begin < piece.offset + piece.bytes && piece.offset < step.end;
        if (meets) {
          EXPECT_EQ(step.window, window) << tensor.name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Random, ScatterOrders, testing::Range<uint64_t>(1, 13));

TEST(ScatterOrder, CutsNoElementOfALargeTensor) {
  CheckpointIndex index;
  index.files = {{"/a", 100'000, "2", "4", "1", 3}};
  index.tensors = {Tensor("a", Dtype::kU8, 13, 0, 8), Tensor("b", Dtype::kF64, 4000, 0, 21)};
  const ScatterOrder order = OrderScatter(index, {1000, 100});
  ASSERT_GE(order.steps.size(), 30u);
  for (const ScatterStep& step : order.steps) {
    EXPECT_LE(step.end - step.begin, 1015u);
    if (step.begin > 21) {
      EXPECT_EQ((step.begin - 21) % 8, 0u);
    }
  }
}

TEST(ScatterOrder, LeavesNoShortStepBehind) {
  for (const uint64_t bytes : {1001, 2000, 2016, 3333, 32'005}) {
    CheckpointIndex index;
    index.files = {{"/a", 100'000, "2", "4", "1", 3}};
    index.tensors = {Tensor("a", Dtype::kU8, bytes, 0, 5)};
    const ScatterOrder order = OrderScatter(index, {1000, 100});
    EXPECT_EQ(order.steps.size(), (bytes + 999) / 1000);
    uint64_t longest = 0;
    uint64_t shortest = UINT64_MAX;
    for (const ScatterStep& step : order.steps) {
      longest = std::max(longest, step.end - step.begin);
      shortest = std::min(shortest, step.end - step.begin);
    }
    EXPECT_LE(longest - shortest, 32u) << bytes;
  }
}

TEST(ScatterOrder, EndsAStepAfterSoManyTensors) {
  CheckpointIndex index;
  index.files = {{"/a", 100'000, "2", "4", "1", 3}};
  for (uint64_t i = 0; i < 100; ++i) {
    index.tensors.push_back(Tensor("t" + std::to_string(1000 + i), Dtype::kU8, 10, 0, 10 * i));
  }
  EXPECT_EQ(OrderScatter(index, {1 << 20, 8}).steps.size(), 13u);
  EXPECT_EQ(OrderScatter(index, {1 << 20, 1000}).steps.size(), 1u);
}

TEST(ScatterOrder, HasADigestThatTellsOrdersApart) {
  const RandomSource source(3, 40);
  const ScatterOrder order = OrderScatter(source.index, {256, 8});
  EXPECT_EQ(OrderScatter(source.index, {256, 8}).digest, order.digest);
  EXPECT_NE(OrderScatter(source.index, {128, 8}).digest, order.digest);
  EXPECT_NE(OrderScatter(RandomSource(4, 40).index, {256, 8}).digest, order.digest);
}

TEST(ScatterOrder, OfNothingHasNoSteps) {
  EXPECT_TRUE(OrderScatter(CheckpointIndex(), {}).steps.empty());
}

// A part of a transposed piece would go to all of its tensor, element by element.
TEST(ScatterOrder, CutsNoPieceWithStrides) {
  CheckpointIndex index;
  index.files = {{"/a", 100'000, "2", "4", "1", 3}};
  index.tensors = {Tensor("a", Dtype::kF32, 2000, 0, 0), Tensor("b", Dtype::kF32, 2000, 0, 8000)};
  TensorEntry& tensor = index.tensors[1];
  tensor.shape = {50, 40};
  tensor.pieces[0].box = {{0, 0}, {50, 40}};
  tensor.pieces[0].strides = {1, 100};
  const ScatterOrder order = OrderScatter(index, {1000, 1});
  ASSERT_EQ(order.windows.size(), 2u);
  EXPECT_EQ(order.steps.back().window, 1u);
  EXPECT_EQ(order.steps.back().begin, 8000u);
  EXPECT_EQ(order.steps.back().end, 8000u + 4 * (39 * 100 + 49 + 1));
  EXPECT_EQ(order.steps[order.steps.size() - 2].window, 0u);
}

}  // namespace
}  // namespace ckptd

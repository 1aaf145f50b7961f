// Pages of a tensor table stay small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "server/rpc/convert.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

class TensorPageTest : public ::testing::Test {
 protected:
  // Names as long as those of large models.
  TensorPageTest() {
    for (size_t i = 0; i < kTensors; ++i) {
      PlannedTensor tensor;
      tensor.name = "model.layers." + std::to_string(i) + ".mlp.experts.gate_up_proj.weight";
      tensor.shape = {1 << 20, 1 << 20};
      tensor.offset = std::numeric_limits<uint64_t>::max() - i;
      if (i % 10 == 0) tensor.aliases = {tensor.name + ".alias"};
      shard_.plan.tensors.push_back(std::move(tensor));
      shard_.digests.push_back(std::numeric_limits<uint64_t>::max());
    }
  }

  static constexpr size_t kTensors = 100'000;
  Shard shard_;
};

TEST_F(TensorPageTest, PagesOfAHugeTableAreSmallAndTogetherTheWhole) {
  size_t begin = 0;
  size_t seen = 0;
  do {
    size_t next = 0;
    const v1::TensorTable page = TensorPage(shard_, begin, 0, next);
    ASSERT_LT(page.ByteSizeLong(), size_t{4} << 20);
    ASSERT_EQ(page.names(0), shard_.plan.tensors[begin].name);
    ASSERT_TRUE(next == 0 || next == begin + static_cast<size_t>(page.names_size()));
    seen += static_cast<size_t>(page.names_size());
    begin = next;
  } while (begin != 0);
  EXPECT_EQ(seen, kTensors);
}

TEST_F(TensorPageTest, HoldsNoMoreThanThePageSize) {
  size_t next = 0;
  EXPECT_EQ(TensorPage(shard_, 5, 7, next).names_size(), 7);
  EXPECT_EQ(next, 12u);
}

TEST_F(TensorPageTest, AliasesNameTensorsOfTheirOwnPage) {
  size_t next = 0;
  const v1::TensorTable page = TensorPage(shard_, 18, 5, next);
  ASSERT_EQ(page.alias_names_size(), 1);
  EXPECT_EQ(page.alias_names(0), shard_.plan.tensors[20].aliases[0]);
  EXPECT_EQ(page.alias_tensors(0), 2u);
}

TEST_F(TensorPageTest, UnexpectedNamesFollowTheTensors) {
  shard_.unexpected = {"u0", "u1", "u2"};
  size_t next = 0;
  const v1::TensorTable mixed = TensorPage(shard_, kTensors - 1, 2, next);
  EXPECT_EQ(mixed.names_size(), 1);
  EXPECT_THAT(mixed.unexpected_names(), ElementsAre("u0"));
  const v1::TensorTable last = TensorPage(shard_, next, 0, next);
  EXPECT_EQ(last.names_size(), 0);
  EXPECT_THAT(last.unexpected_names(), ElementsAre("u1", "u2"));
  EXPECT_EQ(next, 0u);
}

TEST_F(TensorPageTest, FlatParametersComeBetweenTensorsAndUnexpectedNames) {
  shard_.plan.flats = {{"one", Dtype::kBF16, 512, 7}, {"two", Dtype::kBF16, 1024, 9}};
  shard_.unexpected = {"extra"};
  EXPECT_EQ(TableRows(shard_), kTensors + 3);
  size_t next = 0;
  const v1::TensorTable mixed = TensorPage(shard_, kTensors - 1, 2, next);
  EXPECT_EQ(mixed.names_size(), 1);
  EXPECT_THAT(mixed.flat_names(), ElementsAre("one"));
  EXPECT_THAT(mixed.flat_elements(), ElementsAre(7));
  const v1::TensorTable last = TensorPage(shard_, next, 0, next);
  EXPECT_THAT(last.flat_offsets(), ElementsAre(1024));
  EXPECT_THAT(last.unexpected_names(), ElementsAre("extra"));
  EXPECT_EQ(next, 0u);
}

TEST_F(TensorPageTest, ATensorTooLongForAPageHasOneOfItsOwn) {
  shard_.plan.tensors[1].name.assign(size_t{2} << 20, 'n');
  size_t next = 0;
  EXPECT_EQ(TensorPage(shard_, 1, 0, next).names_size(), 1);
  EXPECT_EQ(next, 2u);
}

}  // namespace
}  // namespace ckptd

#include "common/export/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

std::vector<OutTensor> Sizes(const std::vector<uint64_t>& sizes) {
  std::vector<OutTensor> out;
  for (const uint64_t bytes : sizes) out.push_back({.name = "t", .bytes = bytes});
  return out;
}

std::vector<std::vector<size_t>> Split(const std::vector<uint64_t>& sizes, uint64_t limit) {
  return SplitIntoShards(Sizes(sizes), limit);
}

TEST(Shards, AreFilledInOrderUpToTheLimit) {
  EXPECT_THAT(Split({6, 6, 2, 6, 2, 2}, 10),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4, 5)));
  EXPECT_THAT(Split({5, 5, 1}, 10), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(Shards, AreOneWhereAllFits) {
  EXPECT_THAT(Split({5, 5}, 10), ElementsAre(ElementsAre(0, 1)));
  EXPECT_TRUE(Split({}, 10).empty());
}

TEST(Shards, HaveALargerTensorAloneAndGoOnBehindIt) {
  EXPECT_THAT(Split({3, 11, 4}, 10), ElementsAre(ElementsAre(1), ElementsAre(0, 2)));
  EXPECT_THAT(Split({11, 12}, 10), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(Shards, HaveTensorsWithoutBytesWhereTheFirstOfThemIs) {
  EXPECT_THAT(Split({8, 0, 8, 0, 2}, 10), ElementsAre(ElementsAre(0, 1, 3), ElementsAre(2, 4)));
}

TEST(Shards, AreCalledAsLoadersLookForThem) {
  EXPECT_EQ(ShardName("model.safetensors", 0, 1), "model.safetensors");
  EXPECT_EQ(ShardName("pytorch_model.bin", 1, 12), "pytorch_model-00002-of-00012.bin");
}

TEST(Shards, HaveAnIndexAsPythonWritesIt) {
  EXPECT_EQ(IndexJson(12, {{"b", "a"}}, {{"\u00fc", "one"}, {"a", "two"}}),
            "{\n  \"metadata\": {\n    \"b\": \"a\",\n    \"total_size\": 12\n  },\n"
            "  \"weight_map\": {\n    \"a\": \"two\",\n    \"\\u00fc\": \"one\"\n  }\n}\n");
}

TEST(ShardSize, HasDecimalUnits) {
  EXPECT_THAT(ParseShardSize("5GB"), Optional(5'000'000'000));
  EXPECT_THAT(ParseShardSize(" 1.5 mb "), Optional(1'500'000));
  EXPECT_THAT(ParseShardSize("2TB"), Optional(2'000'000'000'000));
  EXPECT_THAT(ParseShardSize("123"), Optional(123));
  for (const char* text : {"", "GB", "5GiB", "5G", "-1KB", "0", "1e30TB", "nanGB", "5 KB x"}) {
    EXPECT_EQ(ParseShardSize(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ckptd

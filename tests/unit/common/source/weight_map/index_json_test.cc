#include "common/source/weight_map/index_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(IndexJson, ReadsWeightMapAndTheStringsOfMetadata) {
  ASSERT_OK_AND_ASSIGN(
      const IndexJson index,
      ParseIndexJson(R"({"metadata":{"total_size":16,"head":"embed","more":{"x":"y"}},)"
                     R"("weight_map":{"a":"1.safetensors","b":"2.safetensors"},"other":[1]})"));
  EXPECT_THAT(index.weight_map,
              ElementsAre(Pair("a", "1.safetensors"), Pair("b", "2.safetensors")));
  EXPECT_THAT(index.metadata, ElementsAre(Pair("head", "embed")));
}

TEST(IndexJson, ReadsABareMap) {
  ASSERT_OK_AND_ASSIGN(const IndexJson index, ParseIndexJson(R"({"a":"1.safetensors"})"));
  EXPECT_THAT(index.weight_map, ElementsAre(Pair("a", "1.safetensors")));
}

TEST(IndexJson, ReadsABareMapWithATensorNamedWeightMap) {
  ASSERT_OK_AND_ASSIGN(const IndexJson index, ParseIndexJson(R"({"weight_map":"1.safetensors"})"));
  EXPECT_THAT(index.weight_map, ElementsAre(Pair("weight_map", "1.safetensors")));
}

TEST(IndexJson, TakesTheLastFileOfATensorListedTwice) {
  ASSERT_OK_AND_ASSIGN(const IndexJson index,
                       ParseIndexJson(R"({"a":"1.safetensors","a":"2.safetensors"})"));
  EXPECT_THAT(index.weight_map, ElementsAre(Pair("a", "2.safetensors")));
}

TEST(IndexJson, DropsRedundantPartsOfAFileName) {
  ASSERT_OK_AND_ASSIGN(const IndexJson index, ParseIndexJson(R"({"a":"./x//1.safetensors"})"));
  EXPECT_THAT(index.weight_map, ElementsAre(Pair("a", "x/1.safetensors")));
}

class UnsafeName : public ::testing::TestWithParam<std::string> {};
TEST_P(UnsafeName, IsRefused) {
  const auto index = ParseIndexJson(R"({"w":")" + GetParam() + R"("})");
  EXPECT_THAT(index, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
  EXPECT_EQ(FactsOf(index.status())["tensor"], "w");
}
INSTANTIATE_TEST_SUITE_P(Names, UnsafeName,
                         ::testing::Values("/etc/a.safetensors", "../a.safetensors",
                                           "x/../../a.safetensors", "x/..", "C:a.safetensors",
                                           "c:\\\\a.safetensors", "\\\\\\\\host\\\\a.safetensors",
                                           "..\\\\a.safetensors", "a\\u0000.safetensors"));

TEST(IndexJson, AcceptsDotsInsideAName) {
  EXPECT_OK(ParseIndexJson(R"({"w":"a..b/..c.safetensors"})"));
}

TEST(IndexJson, SaysThatFilesOfAnotherFormatAreNotRead) {
  const auto index = ParseIndexJson(R"({"w":"pytorch_model.bin"})");
  EXPECT_THAT(index, FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(index, Says("tensor \"w\" into file \"pytorch_model.bin\""));
}

class NoIndex : public ::testing::TestWithParam<std::string> {};
TEST_P(NoIndex, IsRefused) {
  EXPECT_THAT(ParseIndexJson(GetParam()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid))
      << GetParam();
}
INSTANTIATE_TEST_SUITE_P(
    Texts, NoIndex,
    ::testing::Values("", "null", "[]", "\"x\"", "3", "{}", "{", R"({"weight_map":{}})",
                      R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":null}})",
                      R"({"weight_map":{"a":{}}})", R"({"weight_map":{"a":["x.safetensors"]}})",
                      R"({"weight_map":[]})", R"({"a":"x.safetensors","b":1})",
                      R"({"metadata":{}})", std::string("{\"a\":\"x.safetensors\"}\0", 22)));

TEST(IndexJson, SurvivesTenMillionOpenBrackets) {
  EXPECT_FALSE(ParseIndexJson(R"({"a":)" + std::string(10'000'000, '[')).ok());
}

}  // namespace
}  // namespace ckptd

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "common/source/formats/offload/format.h"
#include "common/source/formats/offload/index_json.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Offload : public testing::Test {
 protected:
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& source = "/o") {
    CKPTD_ASSIGN_OR_RETURN(const Listing listing, ListSource(storage_, source));
    return format_.ReadIndex(storage_, listing);
  }
  absl::StatusOr<OpenedCheckpoint> ReadWith(const std::string& index) {
    storage_.Write("/o/index.json", index);
    return Read();
  }

  MemoryStorage storage_;
  OffloadFormat format_;
};

TEST_F(Offload, ReadsEachTensorFromItsFile) {
  storage_.Write("/o/b.dat", "12345678");
  storage_.Write("/o/a.weight.dat", "xy");
  storage_.Write("/o/left.over.dat", "");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened,
                       ReadWith(R"({"b": {"dtype": "float32", "shape": [1, 2]},
                                    "a.weight": {"dtype": "bfloat16", "shape": []}})"));
  const CheckpointIndex& index = opened.index;
  ASSERT_EQ(index.tensors.size(), 2u);
  EXPECT_EQ(index.tensors[0].dtype, Dtype::kBF16);
  EXPECT_THAT(index.tensors[0].shape, IsEmpty());
  EXPECT_THAT(index.tensors[1].shape, ElementsAre(1, 2));
  EXPECT_EQ(TensorBytes(storage_, index, index.tensors[1]).front(), std::byte{'1'});
  EXPECT_EQ(index.files.size(), 3u);
  EXPECT_EQ(index.files.back().path, "/o/index.json");
}

TEST_F(Offload, TakesTheIndexForItsFolder) {
  storage_.Write("/o/a.dat", "x");
  storage_.Write("/o/index.json", R"({"a": {"dtype": "bool", "shape": [1]}})");
  EXPECT_TRUE(format_.Recognise(storage_, *ListSource(storage_, "/o/index.json")));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/o/index.json"));
  EXPECT_EQ(opened.index.tensors.size(), 1u);
}

TEST_F(Offload, LeavesOtherIndicesToOthers) {
  storage_.Write("/o/index.json", R"({"entries": [1, 2]})");
  EXPECT_FALSE(format_.Recognise(storage_, *ListSource(storage_, "/o/index.json")));
  EXPECT_FALSE(format_.Recognise(storage_, *ListSource(storage_, "/o")));
}

// numpy writes a byte for an array of none, or no file at all.
TEST_F(Offload, NeedsNoFileForATensorWithoutElements) {
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened,
                       ReadWith(R"({"e": {"dtype": "int64", "shape": [0, 3]}})"));
  ASSERT_EQ(opened.index.tensors.size(), 1u);
  EXPECT_THAT(TensorBytes(storage_, opened.index, opened.index.tensors[0]), IsEmpty());
}

TEST_F(Offload, ListsAllFilesThatAreMissing) {
  storage_.Write("/o/b.dat", "x");
  const auto read = ReadWith(R"({"a": {"dtype": "bool", "shape": [1]},
                                 "b": {"dtype": "bool", "shape": [1]},
                                 "c": {"dtype": "bool", "shape": [1]}})");
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(read, Says("it lacks \"a.dat\", \"c.dat\"; "));
}

TEST_F(Offload, RefusesFilesOfAnotherSize) {
  storage_.Write("/o/a.dat", "123");
  EXPECT_THAT(ReadWith(R"({"a": {"dtype": "float16", "shape": [1]}})"),
              Says("tensor \"a\" needs 2 bytes, its file has 3"));
  EXPECT_THAT(ReadWith(R"({"a": {"dtype": "float64", "shape": [4294967296, 4294967296]}})"),
              Says("beyond 64 bits"));
}

TEST_F(Offload, RefusesNamesThatLeadOutOfTheFolder) {
  for (const char* name : {"../a", "/a", "a/b", "", "a\\u0000b"}) {
    const auto read =
        ReadWith("{\"" + std::string(name) + R"(": {"dtype": "bool", "shape": [1]}})");
    EXPECT_THAT(read, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
    EXPECT_THAT(read, Says("cannot be the name of a file"));
  }
}

TEST_F(Offload, SaysWhatIsWrongWithAnIndex) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "it is not an object"},
      {"", "not valid JSON"},
      {R"({"a": 1})", "\"a\" is no object with dtype and shape"},
      {R"({"a": {"shape": []}})", "\"a\" has no dtype"},
      {R"({"a": {"dtype": "bool"}})", "\"a\" has no shape"},
      {R"({"a": {"dtype": 1, "shape": []}})", "a dtype that is no string"},
      {R"({"a": {"dtype": "bool", "shape": 1}})", "a shape that is no list"},
      {R"({"a": {"dtype": "bool", "shape": [-1]}})", "a shape that is no list"},
      {R"({"a": {"dtype": "bool", "shape": [[1]]}})", "a shape that is no list"},
      {R"({"a": {"dtype": "float8_e4m3fn", "shape": []}})", "float8_e4m3fn\", which is not known"},
      {R"({"a": {"safetensors_file": "/m", "dtype": "float16"}})", "lies in a safetensors file"}};
  for (const auto& [json, says] : cases) {
    const auto read = ReadWith(json);
    ASSERT_FALSE(read.ok()) << json;
    EXPECT_THAT(read, Says(says));
    EXPECT_EQ(FactsOf(read.status())["file"], "/o/index.json");
  }
}

TEST(OffloadIndex, PassesOverWhatItDoesNotKnow) {
  ASSERT_OK_AND_ASSIGN(
      const auto entries,
      offload::ParseIndex(R"({"a": {"more": {"x": [1, {"dtype": "q"}]}, "dtype": "int8",
                              "shape": [2], "last": [[], 1]}})"));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].dtype, Dtype::kI8);
  EXPECT_THAT(entries[0].shape, ElementsAre(2));
}

TEST(OffloadIndex, TakesTheLastOfTwoEntriesAsPythonDoes) {
  ASSERT_OK_AND_ASSIGN(const auto entries,
                       offload::ParseIndex(R"({"a": {"dtype": "int8", "shape": [2]},
                                               "a": {"dtype": "bool", "shape": [3]}})"));
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].dtype, Dtype::kBool);
}

}  // namespace
}  // namespace ckptd

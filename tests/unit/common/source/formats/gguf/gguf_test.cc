#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/formats/gguf/format.h"
#include "common/source/formats/gguf/header.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ8 = 8;

class Gguf : public testing::Test {
 protected:
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& source) {
    CKPTD_ASSIGN_OR_RETURN(const Listing listing, ListSource(storage_, source));
    return format_.ReadIndex(storage_, listing);
  }
  absl::StatusOr<OpenedCheckpoint> ReadFile(const std::string& bytes) {
    storage_.Write("/m/a.gguf", bytes);
    return Read("/m/a.gguf");
  }
  static std::string OneTensor(const std::string& name) {
    return GgufWriter().Add({name, {1}, kF32, "abcd"}).File();
  }

  MemoryStorage storage_;
  GgufFormat format_;
};

TEST_F(Gguf, ReadsShapesFromTheirOuterDimensionOn) {
  const std::string bytes(24, 'x');
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened,
                       ReadFile(GgufWriter().Add({"w", {3, 2}, kF32, bytes}).File()));
  ASSERT_EQ(opened.index.tensors.size(), 1u);
  EXPECT_EQ(opened.index.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(opened.index.tensors[0].dtype, Dtype::kF32);
}

TEST_F(Gguf, KeepsNumbersAndTextsAndPassesOverLists) {
  GgufWriter writer;
  writer.Pair("arch", 8, writer.Text("llama"))
      .Pair("blocks", 4, writer.Number(uint32_t{7}))
      .Pair("below", 11, writer.Number(int64_t{-5}))
      .Pair("eps", 6, writer.Number(0.5f))
      .Pair("bias", 7, writer.Number(uint8_t{1}))
      .Pair("tokens", 9,
            writer.Number(uint32_t{8}) + writer.Number(uint64_t{2}) + writer.Text("a") +
                writer.Text("bc"))
      .Pair("scores", 9,
            writer.Number(uint32_t{6}) + writer.Number(uint64_t{1}) + writer.Number(1.0f))
      .Pair("infinite", 12, writer.Number(1.0 / 0.0))
      .Add({"w", {1}, kF32, "abcd"});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, ReadFile(writer.File()));
  EXPECT_THAT(opened.index.values,
              ElementsAre(Pair("arch", "\"llama\""), Pair("below", "-5"), Pair("bias", "true"),
                          Pair("blocks", "7"), Pair("eps", "0.5"), Pair("infinite", "\"inf\"")));
}

TEST_F(Gguf, HeedsTheAlignmentThatAFileStates) {
  GgufWriter writer;
  writer.Align(256).Add({"v", {1}, kF32, "head"}).Add({"w", {1}, kF32, "tail"});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, ReadFile(writer.File()));
  const TensorEntry& tensor = opened.index.tensors[1];
  EXPECT_EQ(tensor.pieces[0].offset, 512u);
  EXPECT_EQ(TensorBytes(storage_, opened.index, tensor).back(), std::byte{'l'});
}

TEST_F(Gguf, ReadsFilesOfBigEndianMachines) {
  GgufWriter writer(true);
  writer.Pair("blocks", 4, writer.Number(uint32_t{7})).Add({"w", {2}, kF32, "abcdefgh"});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, ReadFile(writer.File()));
  EXPECT_TRUE(opened.index.tensors[0].big_endian);
  EXPECT_EQ(opened.index.values.at("blocks"), "7");
}

TEST_F(Gguf, NamesQuantisedTensorsAndReadsTheOthers) {
  GgufWriter writer;
  writer.Add({"q", {32}, kQ8, std::string(34, 'q')}).Add({"w", {1}, kF32, "abcd"});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, ReadFile(writer.File()));
  ASSERT_EQ(opened.index.tensors.size(), 1u);
  EXPECT_THAT(opened.index.opaque, ElementsAre(Pair("q", "ggml.Q8_0")));
  EXPECT_THAT(opened.remarks, ElementsAre(HasSubstr("1 of 2 tensors are quantised and not read: "
                                                    "\"q (Q8_0)\"")));
}

TEST_F(Gguf, RefusesAModelThatIsQuantisedAltogether) {
  const auto read = ReadFile(GgufWriter().Add({"q", {32}, kQ8, std::string(34, 'q')}).File());
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(read, Says("Q8_0"));
}

TEST_F(Gguf, ReadsAllFilesOfASplitModel) {
  storage_.Write("/m/x-00001-of-00002.gguf", OneTensor("a"));
  storage_.Write("/m/x-00002-of-00002.gguf", OneTensor("b"));
  storage_.Write("/m/readme.md", "");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("/m"));
  EXPECT_EQ(opened.index.tensors.size(), 2u);
  EXPECT_EQ(opened.index.files.size(), 2u);
}

TEST_F(Gguf, ListsWhatASplitModelLacks) {
  storage_.Write("/m/x-00002-of-00004.gguf", OneTensor("b"));
  const auto read = Read("/m");
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  for (const char* number : {"1", "3", "4"}) {
    EXPECT_THAT(read, Says("x-0000" + std::string(number) + "-of-00004.gguf"));
  }
}

TEST_F(Gguf, AsksWhichOfSeveralModelsIsMeant) {
  storage_.Write("/m/x-q4.gguf", OneTensor("a"));
  storage_.Write("/m/x-q8.gguf", OneTensor("a"));
  EXPECT_THAT(Read("/m"), Says("several models in GGUF files (\"x-q4.gguf\", \"x-q8.gguf\")"));
}

TEST_F(Gguf, RefusesWhatItsHeaderCannotMean) {
  const std::string good = OneTensor("w");
  GgufWriter lists;
  lists.Pair("k", 9, lists.Number(uint32_t{9}) + lists.Number(uint64_t{1}));
  GgufWriter huge;
  huge.Pair("k", 9, huge.Number(uint32_t{12}) + huge.Number(~uint64_t{0}));
  GgufWriter long_text;
  long_text.Pair("k", 8, long_text.Number(~uint64_t{0}));
  GgufWriter type;
  type.Pair("k", 13, "");
  GgufWriter dims;
  dims.Add({"w", std::vector<uint64_t>(9, 1), kF32, "abcd"});
  GgufWriter size;
  size.Add({"w", {uint64_t{1} << 40, uint64_t{1} << 40}, kF32, "abcd"});
  GgufWriter twice;
  twice.Add({"w", {1}, kF32, "abcd"}).Add({"w", {1}, kF32, "abcd"});
  GgufWriter name;
  name.Add({"\xff", {1}, kF32, "abcd"});
  GgufWriter alignment;
  alignment.Pair("general.alignment", 4, alignment.Number(uint32_t{24}));
  const std::vector<std::pair<std::string, std::string>> cases = {
      {good.substr(0, 30), "ends behind the end of the file"},
      {good.substr(0, good.size() - 1), "ends behind the end of its file"},
      {lists.File(), "a list of values of type 9"},
      {huge.File(), "a list of 18446744073709551615 values"},
      {long_text.File(), "ends behind the end of the file"},
      {type.File(), "a value of type 13"},
      {dims.File(), "9 dimensions"},
      {size.File(), "beyond 64 bits"},
      {twice.File(), "another one of that name"},
      {name.File(), "not in UTF-8"},
      {alignment.File(), "no power of two"},
      {GgufWriter().File(1), "of version 1"}};
  for (const auto& [bytes, says] : cases) {
    const auto read = ReadFile(bytes);
    ASSERT_FALSE(read.ok()) << says;
    EXPECT_THAT(read, Says(says));
    EXPECT_EQ(FactsOf(read.status())["file"], "/m/a.gguf");
  }
}

TEST_F(Gguf, IsFoundByItsFirstBytes) {
  storage_.Write("/m/model", OneTensor("w"));
  storage_.Write("/m/other.gguf", "GGU");
  EXPECT_TRUE(format_.Recognise(storage_, *ListSource(storage_, "/m/model")));
  EXPECT_FALSE(format_.Recognise(storage_, *ListSource(storage_, "/m/other.gguf")));
}

}  // namespace
}  // namespace ckptd

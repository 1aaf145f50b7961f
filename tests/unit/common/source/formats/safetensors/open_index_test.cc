// OpenCheckpoint on indices: which file counts, and names of removed duplicates.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "common/source/open.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"
#include "tests/unit/common/source/open_helpers.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

// ---- The index and the files it names.

TEST(OpenCheckpoint, NamesAFileThatTheIndexHasAndTheFolderLacks) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  const std::string path = folder.Write("model.safetensors.index.json",
                                        IndexOf(R"("x":"a.safetensors","y":"gone.safetensors")"));
  const auto index = OpenCheckpoint(path);
  EXPECT_THAT(index, FailsWith(kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(MessageOf(index.status()),
              AllOf(HasSubstr(path), HasSubstr(folder / "gone.safetensors")));
}

TEST(OpenCheckpoint, AlsoReadsTensorsThatTheIndexDoesNotList) {
  const TempFolder folder;
  folder.Write("a.safetensors",
               FileBytes(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("extra":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                         "xy"));
  folder.Write("model.safetensors.index.json", IndexOf(R"("x":"a.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(NamesOf(index), ElementsAre("extra", "x"));
}

TEST(OpenCheckpoint, NamesBothFilesOfATensorThatIsInTwo) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  folder.Write("b.safetensors", OneTensor("x"));
  const auto index = OpenCheckpoint(folder.path());
  EXPECT_THAT(index, FailsWith(kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(index, Says("tensor \"x\" is in " + (folder / "a.safetensors") + " and in " +
                          (folder / "b.safetensors")));
}

// The metadata that torch writes into each rank's file.
std::string BeginsAt(const std::string& offsets) {
  return R"({"DCP_SHARDING_INFO":"{\"x\": {\"saved_offsets\": [)" + offsets + R"(]}}"})";
}

TEST(OpenCheckpoint, PutsTensorsTogetherThatFilesHoldInChunks) {
  const TempFolder folder;
  folder.Write("shard-00001-model-00001-of-00002.safetensors", OneTensor("x", BeginsAt("1")));
  folder.Write("shard-00002-model-00002-of-00002.safetensors", OneTensor("x", BeginsAt("0")));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  ASSERT_THAT(NamesOf(index), ElementsAre("x"));
  EXPECT_THAT(index.tensors[0].shape, ElementsAre(2));
  ASSERT_EQ(index.tensors[0].pieces.size(), 2u);
  EXPECT_THAT(index.tensors[0].pieces[0].box.offsets, ElementsAre(1));
  EXPECT_THAT(index.tensors[0].pieces[1].box.offsets, ElementsAre(0));
  EXPECT_TRUE(index.metadata.empty());
}

TEST(OpenCheckpoint, RefusesChunksThatOverlapOrLeaveHoles) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x", BeginsAt("0")));
  folder.Write("b.safetensors", OneTensor("x", BeginsAt("0")));
  EXPECT_THAT(OpenCheckpoint(folder.path()), FailsWith(kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(OpenCheckpoint(folder.path()),
              Says("of tensor \"x\", which is saved in chunks as " + (folder / "a.safetensors") +
                   " says, the chunk of (1) at (0) overlaps the one of (1) at (0)"));
  folder.Write("b.safetensors", OneTensor("x", BeginsAt("2")));
  EXPECT_THAT(OpenCheckpoint(folder.path()), Says("1 of its 3 elements are in no chunk"));
}

std::string ShardOf(int rank, int number = 1, int count = 1) {
  return fmt::format("shard-{:05}-model-{:05}-of-{:05}.safetensors", rank, number, count);
}

TEST(OpenCheckpoint, NamesTheFilesOfRanksWithoutWhichATensorHasHoles) {
  const TempFolder folder;
  folder.Write(ShardOf(2), OneTensor("x", BeginsAt("1")));
  folder.Write(ShardOf(5), OneTensor("x", BeginsAt("4")));
  const auto index = OpenCheckpoint(folder.path());
  EXPECT_THAT(index, FailsWith(kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(index, Says(fmt::format("it lacks \"{}\", \"{}\", \"{}\"; of tensor \"x\" 3 of its 5 "
                                      "elements are in no chunk",
                                      ShardOf(1), ShardOf(3), ShardOf(4))));
  EXPECT_THAT(OpenCheckpoint(folder / ShardOf(2)),
              AllOf(FailsWith(kDataLoss, reason::kSourceInvalid), Says("name a folder")));
}

TEST(OpenCheckpoint, NamesAFileThatEachRankLacks) {
  const TempFolder folder;
  folder.Write(ShardOf(1, 1, 3), OneTensor("x", BeginsAt("0")));
  folder.Write(ShardOf(2, 3, 3), OneTensor("y", R"({"DCP_SHARDING_INFO":"{\"y\": {\"saved_offsets\": [0]}}"})"));
  EXPECT_THAT(OpenCheckpoint(folder.path()),
              AllOf(FailsWith(kNotFound, reason::kSourceNotFound),
                    Says("it lacks \"shard-*-model-00002-of-00003.safetensors\"; ")));
  EXPECT_FALSE(Recognise(folder.path()).ok());
}

TEST(OpenCheckpoint, SaysWhatItTakesForAllRanksFiles) {
  const TempFolder folder;
  folder.Write(ShardOf(1), OneTensor("x", BeginsAt("0")));
  folder.Write(ShardOf(3), OneTensor("x", BeginsAt("1")));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint all, OpenWithRemarks(folder.path()));
  EXPECT_THAT(all.remarks, ElementsAre(HasSubstr("took the files of ranks 1 to 3 without 2 for all")));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint one, OpenWithRemarks(folder / ShardOf(1)));
  EXPECT_THAT(one.remarks, ElementsAre(HasSubstr("name its folder")));
  folder.Write(ShardOf(1), OneTensor("x"));
  folder.Write(ShardOf(3), OneTensor("y"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint whole, OpenWithRemarks(folder.path()));
  EXPECT_THAT(whole.remarks, IsEmpty());
}

TEST(OpenCheckpoint, RefusesChunksThatBeginNowhere) {
  const TempFolder folder;
  for (const char* offsets : {"", "0, 0", "-1", "0.5", "18446744073709551616"}) {
    folder.Write("a.safetensors", OneTensor("x", BeginsAt(offsets)));
    const auto index = OpenCheckpoint(folder.path());
    EXPECT_THAT(index, FailsWith(kDataLoss, reason::kSourceInvalid)) << offsets;
    EXPECT_EQ(FactsOf(index.status())["file"], folder / "a.safetensors");
  }
}

TEST(OpenCheckpoint, TakesATensorInTwoFilesOfAnIndexFromTheLastOne) {
  const TempFolder folder;
  folder.Write("a.safetensors", TwoTensors("x", "q"));
  folder.Write("b.safetensors", TwoTensors("x", "y"));
  folder.Write("model.safetensors.index.json",
               IndexOf(R"("x":"b.safetensors","q":"a.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(NamesOf(index), ElementsAre("q", "x", "y"));
  EXPECT_EQ(FileOf(index, "x"), folder / "b.safetensors");
}

TEST(OpenCheckpoint, ReadsFilesInFoldersBelowTheIndex) {
  const TempFolder folder;
  folder.Write("sub/a.safetensors", OneTensor("x"));
  folder.Write("model.safetensors.index.json", IndexOf(R"("x":"./sub/a.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_EQ(index.files[0].path, folder / "sub/a.safetensors");
}

TEST(OpenCheckpoint, NamesTheIndexThatIsNoIndex) {
  const TempFolder folder;
  const std::string path = folder.Write("model.safetensors.index.json", "[]");
  EXPECT_THAT(OpenCheckpoint(path),
              AllOf(FailsWith(kInvalid, reason::kSourceInvalid), Says("reading index " + path)));
}

TEST(OpenCheckpoint, NamesTheFolderOfAConfigurationThatIsTakenForAnIndex) {
  const TempFolder folder;
  for (const char* name : {"config.json", "adapter_config.json"}) {
    const std::string path = folder.Write(name, R"({"r": 8, "model_type": "llama"})");
    EXPECT_THAT(OpenCheckpoint(path), AllOf(FailsWith(kInvalid, reason::kSourceInvalid),
                                            Says("opening " + path + ": it is no index; name its folder")));
  }
}

// ---- Names of removed duplicates.

TEST(OpenCheckpoint, ResolvesARemovedNameToTheKeptTensor) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("embed", R"({"lm_head":"embed","format":"pt"})"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(index.aliases, ElementsAre(Pair("lm_head", "embed")));
  EXPECT_EQ(index.Find("lm_head")->name, "embed");
}

TEST(OpenCheckpoint, MakesNoAliasOfANameThatIsATensor) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("embed", R"({"head":"embed"})"));
  folder.Write("b.safetensors", OneTensor("head"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(index.aliases, IsEmpty());
}

TEST(OpenCheckpoint, MakesNoAliasOfATensorInAnotherFile) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x", R"({"head":"embed"})"));
  folder.Write("b.safetensors", OneTensor("embed"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(index.aliases, IsEmpty());
}

TEST(OpenCheckpoint, MakesNoAliasOfAnAlias) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x", R"({"b":"x","c":"b"})"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(index.aliases, ElementsAre(Pair("b", "x")));
}

TEST(OpenCheckpoint, RefusesARemovedNameOfTwoTensors) {
  const TempFolder folder;
  const std::string a = folder.Write("a.safetensors", OneTensor("x", R"({"head":"x"})"));
  const std::string b = folder.Write("b.safetensors", OneTensor("y", R"({"head":"y"})"));
  EXPECT_THAT(
      OpenCheckpoint(folder.path()),
      AllOf(FailsWith(kDataLoss, reason::kSourceInvalid),
            Says(a + " says that \"head\" is another name of \"x\""), Says(b + " says of \"y\"")));
}

TEST(OpenCheckpoint, TakesARemovedNameFromTheFileThatTheIndexNames) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x", R"({"head":"x"})"));
  folder.Write("b.safetensors", OneTensor("y", R"({"head":"y"})"));
  folder.Write("model.safetensors.index.json",
               IndexOf(R"("x":"a.safetensors","y":"b.safetensors","head":"b.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(index.aliases, ElementsAre(Pair("head", "y")));
}

TEST(OpenCheckpoint, RefusesARemovedNameThatIndexAndFileTellApart) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x", R"({"head":"x"})"));
  folder.Write("b.safetensors", OneTensor("y"));
  folder.Write(
      "model.safetensors.index.json",
      R"({"metadata":{"head":"y"},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  EXPECT_THAT(OpenCheckpoint(folder.path()), Says("model.safetensors.index.json says of \"y\""));
}

TEST(OpenCheckpoint, TakesAliasesFromTheMetadataOfTheIndex) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("embed"));
  folder.Write(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":1,"head":"embed"},"weight_map":{"embed":"a.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(index.aliases, ElementsAre(Pair("head", "embed")));
}

TEST(OpenCheckpoint, AcceptsAnIndexThatListsARemovedName) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("embed", R"({"head":"embed"})"));
  folder.Write("model.safetensors.index.json",
               IndexOf(R"("embed":"a.safetensors","head":"a.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_EQ(index.Find("head")->name, "embed");
}

}  // namespace
}  // namespace ckptd

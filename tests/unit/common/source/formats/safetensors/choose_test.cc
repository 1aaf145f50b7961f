// Which of a folder's files make its checkpoint: one table, each line a folder.
#include "common/source/formats/safetensors/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/open.h"
#include "common/source/registry.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"
#include "tests/unit/common/source/open_helpers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Names = std::vector<std::string>;

struct Folder {
  Names holds;
  Names counts;  // the index, or the files; empty: refused
  std::string refusal = {};
};

class ChooseFiles : public ::testing::TestWithParam<Folder> {};
TEST_P(ChooseFiles, TakesWhatTransformersWouldAndElseTheModelsOwnFiles) {
  const TempFolder folder;
  for (const std::string& name : GetParam().holds) folder.Write(name, "");
  const std::shared_ptr<const Storage> storage = StorageOf(folder.path());
  ASSERT_OK_AND_ASSIGN(const Listing listing, ListSource(*storage, folder.path()));
  const auto choice = ckptd::ChooseFiles(folder.path(), ContentsOf(listing));
  if (GetParam().counts.empty()) {
    ASSERT_FALSE(choice.ok());
    EXPECT_THAT(choice, Says(GetParam().refusal));
    return;
  }
  ASSERT_OK(choice);
  EXPECT_EQ(choice->index.empty() ? choice->names : Names{choice->index}, GetParam().counts);
}

const char kWhole[] = "model.safetensors";
const char kIndex[] = "model.safetensors.index.json";
const char kFirst[] = "model-00001-of-00002.safetensors";
const char kSecond[] = "model-00002-of-00002.safetensors";

INSTANTIATE_TEST_SUITE_P(
    Folders, ChooseFiles,
    ::testing::Values(
        Folder{{kWhole}, {kWhole}},  //
        Folder{{kWhole, kIndex, kFirst, kSecond}, {kWhole}},
        Folder{{kWhole, "model.fp16.safetensors", "consolidated.safetensors"}, {kWhole}},
        Folder{{kWhole, "pytorch_model.bin"}, {kWhole}},
        Folder{{kIndex, kFirst, kSecond, "consolidated.safetensors"}, {kIndex}},
        Folder{{kIndex, "other.safetensors.index.json"}, {kIndex}},
        Folder{{kIndex, "pytorch_model.bin.index.json"}, {kIndex}},
        Folder{{"m.safetensors.index.json", "a.safetensors"}, {"m.safetensors.index.json"}},
        Folder{{"m.safetensors.index.json", "consolidated.safetensors.index.json"},
               {"m.safetensors.index.json"}},
        Folder{{kFirst, kSecond, "adapter_model.safetensors", "extra.safetensors"},
               {kFirst, kSecond}},
        Folder{{kFirst, kSecond, "model.fp16-00001-of-00001.safetensors"}, {kFirst, kSecond}},
        Folder{{kFirst, "adapter_model.safetensors"}, {}, "it lacks \"" + std::string(kSecond)},
        Folder{{"a-00001-of-00001.safetensors", "b.safetensors"}, {"a-00001-of-00001.safetensors"}},
        Folder{{"a-00001-of-00001.safetensors", "b-00001-of-00001.safetensors"},
               {"a-00001-of-00001.safetensors", "b-00001-of-00001.safetensors"}},
        Folder{{"a.safetensors", "b.safetensors"}, {"a.safetensors", "b.safetensors"}},
        Folder{{"a.safetensors", "optimizer.safetensors", "scaler.safetensors",
                "random_states_0.safetensors", "adapter_model.safetensors",
                "optimizer-00001-of-00001.safetensors"},
               {"a.safetensors"}},
        Folder{{"optimizer_net.safetensors", "a.safetensors"},
               {"a.safetensors", "optimizer_net.safetensors"}},
        Folder{{"consolidated.safetensors"}, {"consolidated.safetensors"}},
        Folder{{"consolidated-00001-of-00002.safetensors", "consolidated-00002-of-00002.safetensors",
                "adapter_model.safetensors"},
               {"consolidated-00001-of-00002.safetensors",
                "consolidated-00002-of-00002.safetensors"}},
        Folder{{"consolidated.safetensors", "adapter_model.safetensors"}, {}, "name the one to load"},
        Folder{{"p.safetensors.index.json", "q.safetensors.index.json"}, {}, "name the one to load"},
        Folder{{"pytorch_model.bin", "adapter_model.safetensors"}, {"adapter_model.safetensors"}},
        Folder{{"pytorch_model.bin.index.json", kFirst, kSecond}, {kFirst, kSecond}},
        Folder{{"config.json"}, {}, "no .safetensors file in this folder"}));

// ---- What was left out is said, and what an index says wrongly.

TEST(OpenWithRemarks, NamesTheFilesThatWereLeftOut) {
  const TempFolder folder;
  folder.Write(kWhole, OneTensor("new"));
  folder.Write(kFirst, OneTensor("old"));
  folder.Write(kIndex, IndexOf(fmt::format(R"("old":"{}")", kFirst)));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, OpenWithRemarks(folder.path()));
  EXPECT_THAT(NamesOf(opened.index), ElementsAre("new"));
  EXPECT_THAT(opened.remarks,
              ElementsAre(HasSubstr(fmt::format(R"(left out "{}", "{}": "{}" counts)", kFirst,
                                                kIndex, kWhole))));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint named, OpenWithRemarks(folder / kIndex));
  EXPECT_THAT(NamesOf(named.index), ElementsAre("old"));
  EXPECT_THAT(named.remarks, IsEmpty()) << "a path of its own leaves nothing out";
}

TEST(OpenWithRemarks, HasNoneForAFolderThatIsAsItShouldBe) {
  const TempFolder folder;
  folder.Write(kFirst, OneTensor("x"));
  folder.Write(kSecond, OneTensor("y"));
  folder.Write(kIndex, IndexOf(fmt::format(R"("x":"{}","y":"{}")", kFirst, kSecond)));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, OpenWithRemarks(folder.path()));
  EXPECT_THAT(opened.remarks, IsEmpty());
}

TEST(OpenWithRemarks, TakesAnIndexForAHint) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x", R"({"head":"x"})"));
  folder.Write("b.safetensors", OneTensor("y"));
  folder.Write(kIndex, R"({"metadata":{"total_size":NaN,"loss":-Infinity},"weight_map":{)"
                       R"("x":"b.safetensors","y":"a.safetensors","head":"b.safetensors",)"
                       R"("gone":"a.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, OpenWithRemarks(folder.path()));
  EXPECT_THAT(NamesOf(opened.index), ElementsAre("x", "y"));
  EXPECT_EQ(FileOf(opened.index, "x"), folder / "a.safetensors");
  EXPECT_EQ(opened.index.Find("head")->name, "x");
  EXPECT_THAT(opened.remarks,
              ElementsAre(HasSubstr("NaN or Infinity"),
                          HasSubstr(R"(1 of its names are in no file that it names: "gone")"),
                          HasSubstr(R"(3 of its names are in another file than it says: "head", )"
                                    R"("x", "y")")));
}

TEST(OpenWithRemarks, SaysWhichOfTwoFilesCountedAgainstTheIndex) {
  const TempFolder folder;
  folder.Write("a.safetensors", TwoTensors("x", "p"));
  folder.Write("b.safetensors", TwoTensors("x", "q"));
  folder.Write(kIndex, IndexOf(R"("x":"a.safetensors","q":"b.safetensors","p":"a.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, OpenWithRemarks(folder.path()));
  EXPECT_EQ(FileOf(opened.index, "x"), folder / "b.safetensors") << "as transformers reads them";
  EXPECT_THAT(opened.remarks, ElementsAre(HasSubstr(R"(the last one counts)")));
}

// ---- What the model's config.json names comes first.

TEST(OpenCheckpoint, LoadsTheWeightsThatTheConfigNames) {
  const TempFolder folder;
  folder.Write(kWhole, OneTensor("usual"));
  folder.Write("other.safetensors", OneTensor("named"));
  folder.Write("config.json", R"({"a":[{"transformers_weights":"no"}],"x":NaN,)"
                              R"("transformers_weights":"other.safetensors"})");
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_THAT(NamesOf(index), ElementsAre("named"));
  EXPECT_OK(CheckUnchanged(index));
  folder.Write("config.json", "{}");
  EXPECT_THAT(CheckUnchanged(index), Says("other files of that folder count now"));
}

TEST(OpenCheckpoint, RefusesWeightsOfTheConfigOutsideItsFolder) {
  const TempFolder folder;
  folder.Write(kWhole, OneTensor("x"));
  folder.Write("config.json", R"({"transformers_weights":"../other.safetensors"})");
  const auto index = OpenCheckpoint(folder.path());
  EXPECT_THAT(index, FailsWith(kInvalid, reason::kSourceInvalid));
  EXPECT_THAT(index, Says("its transformers_weights is \"../other.safetensors\", a path with"));
}

TEST(OpenCheckpoint, TakesNoNoticeOfAConfigThatIsNone) {
  const TempFolder folder;
  folder.Write(kWhole, OneTensor("x"));
  for (const char* config : {"", "[]", "{", "{\"transformers_weights\":null}"}) {
    folder.Write("config.json", config);
    EXPECT_OK(OpenCheckpoint(folder.path()).status()) << config;
  }
}

}  // namespace
}  // namespace ckptd

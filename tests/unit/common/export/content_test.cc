#include "common/export/content.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TensorEntry Entry(const std::string& name, Dtype dtype, uint64_t offset = 0) {
  TensorEntry entry{.name = name, .dtype = dtype, .shape = {3}};
  entry.pieces = {{.offset = offset, .bytes = 3 * BitsOf(dtype) / 8, .box = {{0}, {3}}}};
  return entry;
}

class ContentTest : public ::testing::Test {
 protected:
  ContentTest() {
    index_.format = "safetensors";
    index_.tensors = {Entry("a.weight", Dtype::kF32, 24), Entry("b.bias", Dtype::kI64, 0),
                      Entry("c.weight", Dtype::kF16, 36)};
    index_.aliases = {{"d.weight", "a.weight"}, {"a2.weight", "a.weight"}};
    index_.metadata = {{"format", "pt"}, {"d.weight", "a.weight"}};
  }
  static std::vector<std::string> Names(const Content& content) {
    std::vector<std::string> names;
    for (const OutTensor& tensor : content.tensors) names.push_back(tensor.name);
    return names;
  }

  CheckpointIndex index_;
};

TEST_F(ContentTest, IsEverythingUnlessSomethingIsChosen) {
  ASSERT_OK_AND_ASSIGN(const Content content, Choose(index_, {}));
  EXPECT_THAT(Names(content), ElementsAre("a.weight", "b.bias", "c.weight"));
  EXPECT_THAT(content.tensors[0].aliases, ElementsAre("a2.weight", "d.weight"));
  EXPECT_EQ(content.bytes(), 12u + 24u + 6u);
}

TEST_F(ContentTest, KeepsMetadataThatNamesNoTiedTensor) {
  ASSERT_OK_AND_ASSIGN(const Content content, Choose(index_, {}));
  EXPECT_THAT(content.metadata, ElementsAre(std::pair("format", "pt")));
  index_.format = "gguf";
  EXPECT_THAT(Choose(index_, {})->metadata, IsEmpty());
}

TEST_F(ContentTest, IncludesAndExcludesByPattern) {
  Choice choice;
  choice.include = {"*.weight"};
  choice.exclude = {"c.*"};
  ASSERT_OK_AND_ASSIGN(const Content content, Choose(index_, choice));
  EXPECT_THAT(Names(content), ElementsAre("a.weight"));
}

TEST_F(ContentTest, KeepsATensorUnderAnotherOfItsNames) {
  Choice choice;
  choice.exclude = {"a.weight"};
  ASSERT_OK_AND_ASSIGN(const Content content, Choose(index_, choice));
  EXPECT_EQ(content.tensors[0].name, "a2.weight");
  EXPECT_THAT(content.tensors[0].aliases, ElementsAre("d.weight"));
}

TEST_F(ContentTest, CastsFloatingTensorsAlone) {
  Choice choice;
  choice.dtype = Dtype::kBF16;
  ASSERT_OK_AND_ASSIGN(const Content content, Choose(index_, choice));
  EXPECT_EQ(content.tensors[0].dtype, Dtype::kBF16);
  EXPECT_EQ(content.tensors[0].bytes, 6u);
  EXPECT_EQ(content.tensors[1].dtype, Dtype::kI64);
  EXPECT_EQ(content.tensors[1].bytes, 24u);
}

TEST_F(ContentTest, RenamesTensorsAndAliases) {
  Choice choice;
  choice.rename = [](const std::string& name) { return "m." + name; };
  ASSERT_OK_AND_ASSIGN(const Content content, Choose(index_, choice));
  EXPECT_EQ(content.tensors[0].name, "m.a.weight");
  EXPECT_THAT(content.tensors[0].aliases, ElementsAre("m.a2.weight", "m.d.weight"));
}

TEST_F(ContentTest, RefusesOneNameForTwo) {
  for (const char* both : {"b.bias", "d.weight"}) {
    Choice choice;
    choice.rename = [both](const std::string& name) { return name == "c.weight" ? both : name; };
    EXPECT_THAT(Choose(index_, choice),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
    EXPECT_THAT(Choose(index_, choice), Says(both));
  }
}

TEST_F(ContentTest, RefusesAPatternThatMatchesNothing) {
  Choice choice;
  choice.exclude = {"*.wieght"};
  EXPECT_THAT(Choose(index_, choice), Says("*.wieght"));
  choice.may_match_nothing = true;
  EXPECT_OK(Choose(index_, choice));
}

TEST_F(ContentTest, RefusesAPatternThatMatchesNothingOfSeveral) {
  Choice choice;
  choice.may_match_nothing = true;
  choice.include = {"a.*", "b.*"};
  CheckpointIndex other = index_;
  std::erase_if(other.tensors, [](const auto& tensor) { return tensor.name == "a.weight"; });
  other.aliases.clear();
  ASSERT_OK_AND_ASSIGN(const Content one, Choose(index_, choice));
  ASSERT_OK_AND_ASSIGN(const Content two, Choose(other, choice));
  EXPECT_THAT(two.unmatched, ElementsAre("a.*"));
  EXPECT_OK(CheckPatterns(choice, {&one, &two}));
  EXPECT_OK(CheckPatterns(choice, {&two, &one}));
  EXPECT_THAT(CheckPatterns(choice, {&two, &two}), Says("no name matches \"a.*\""));
}

TEST_F(ContentTest, RefusesToLeaveNothing) {
  Choice choice;
  choice.exclude = {"*"};
  EXPECT_THAT(Choose(index_, choice), Says("nothing is left; give other"));
  index_.tensors.clear();
  index_.aliases.clear();
  EXPECT_THAT(Choose(index_, {}), Says("there are no tensors; name another"));
}

TEST_F(ContentTest, HasEntriesThatAreNoTensorsWhereTheyAreWanted) {
  index_.tensors[1].kind = EntryKind::kObject;
  EXPECT_THAT(Names(*Choose(index_, {})), ElementsAre("a.weight", "c.weight"));
  Choice choice;
  choice.objects = true;
  EXPECT_EQ(Choose(index_, choice)->tensors.size(), 3u);
}

TEST_F(ContentTest, IsInTheOrderOfTheFilesForDictsOfTorch) {
  index_.format = "torch";
  EXPECT_THAT(Names(*Choose(index_, {})), ElementsAre("b.bias", "a.weight", "c.weight"));
}

}  // namespace
}  // namespace ckptd

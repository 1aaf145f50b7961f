#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/base/reasons.h"
#include "common/plan/view/sets.h"
#include "common/plan/view/view.h"
#include "tests/testing/status_matchers.h"

namespace ckptd::view {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<View> InverseOf(const std::string& rules) {
  return ReadView("inverse:{\"rules\": [" + rules + "]}");
}

TEST(Inverse, SwapsPatternsAndNewNames) {
  ASSERT_OK_AND_ASSIGN(const View back, InverseOf(R"j({"rename": "^(model|m)\\.h\\.(\\d+)$", "to": "\\2.layers.\\1"})j"));
  EXPECT_THAT(back.rules.front().from, ElementsAre(R"(^(\d+)\.layers\.(model|m)$)"));
  EXPECT_THAT(back.rules.front().to, ElementsAre(R"(\2.h.\1)"));
}

TEST(Inverse, UndoesTheLastRuleFirst) {
  ASSERT_OK_AND_ASSIGN(const View back, InverseOf(R"j({"rename": "a", "to": "b"}, {"transpose": "b.*", "axes": [2, 0, 1]})j"));
  ASSERT_EQ(back.rules.size(), 2u);
  EXPECT_EQ(back.rules.front().kind, RuleKind::kTranspose);
  EXPECT_THAT(back.rules.front().axes, ElementsAre(1, 2, 0));
  EXPECT_THAT(back.rules.back().from, ElementsAre("b"));
}

TEST(Inverse, FusesWhatWasSplitAndSplitsWhatWasFused) {
  ASSERT_OK_AND_ASSIGN(const View fused, InverseOf(R"j({"split": "(.*)\\.qk", "to": ["\\1.q", "\\1.k"], "axis": 1})j"));
  EXPECT_EQ(fused.rules.front().kind, RuleKind::kFuse);
  EXPECT_THAT(fused.rules.front().from, ElementsAre(R"((.*)\.q)", R"((.*)\.k)"));
  EXPECT_THAT(fused.rules.front().to, ElementsAre(R"(\1.qk)"));
  EXPECT_THAT(fused.rules.front().shares, ElementsAre(1, 1)) << "equal parts, as they were";
  EXPECT_EQ(fused.rules.front().axis, 1u);
  ASSERT_OK_AND_ASSIGN(
      const View split,
      InverseOf(R"j({"fuse": ["(.*)\\.q", "(.*)\\.k"], "to": "\\1.qk", "shares": [4, 1], "groups": 2, "optional": true})j"));
  EXPECT_EQ(split.rules.front().kind, RuleKind::kSplit);
  EXPECT_THAT(split.rules.front().to, ElementsAre(R"(\1.q)", R"(\1.k)"));
  EXPECT_THAT(split.rules.front().shares, ElementsAre(4, 1));
  EXPECT_EQ(split.rules.front().groups, 2u);
  EXPECT_TRUE(split.rules.front().optional);
}

TEST(Inverse, PutsNumbersWhereTheyWere) {
  ASSERT_OK_AND_ASSIGN(const View unstacked, InverseOf(R"j({"stack": "(.*)\\.e\\.(?P<index>\\d+)\\.(w)", "to": "\\1.\\3"})j"));
  EXPECT_THAT(unstacked.rules.front().from, ElementsAre(R"((.*)\.(w))"));
  EXPECT_THAT(unstacked.rules.front().to, ElementsAre(R"(\1.e.{}.\2)"));
  ASSERT_OK_AND_ASSIGN(const View stacked, InverseOf(R"j({"unstack": "(.*)\\.(w)", "to": "\\1.e.{}.\\2"})j"));
  EXPECT_THAT(stacked.rules.front().from, ElementsAre(R"((.*)\.e\.(?P<index>\d+)\.(w))"));
  EXPECT_THAT(stacked.rules.front().to, ElementsAre(R"(\1.\3)"));
}

TEST(Inverse, DropsTheNameThatWasGiven) {
  ASSERT_OK_AND_ASSIGN(const View back, InverseOf(R"j({"tie": "a", "to": "b.c"})j"));
  EXPECT_EQ(back.rules.front().kind, RuleKind::kDrop);
  EXPECT_THAT(back.rules.front().from, ElementsAre(R"(b\.c)"));
}

TEST(Inverse, SaysWhyThereIsNone) {
  const std::map<std::string, std::string> wrong = {
      {R"j({"drop": "a"})j", "what it leaves out is not there any more"},
      {R"j({"slice": "a", "begin": 0, "end": 1})j", "what it leaves out is not there any more"},
      {R"j({"untie": "a"})j", "which tensor it was a name of"},
      {R"j({"fuse": ["a", "b"], "to": "c"})j", "give it \"sizes\" or \"shares\""},
      {R"j({"rename": "a.b", "to": "c"})j", "\".\" outside of parentheses"},
      {R"j({"rename": "a\\d", "to": "c"})j", "\"\\\" outside of parentheses"},
      {R"j({"rename": "(a(b))", "to": "\\1\\2"})j", "its parentheses hold others"},
      {R"j({"rename": "(a)(b)", "to": "\\2"})j", "does not have \\1"},
      {R"j({"rename": "(a)", "to": "\\1\\1"})j", "has \\1 twice"},
      {R"j({"rename": "(?P<index>a)", "to": "b"})j", "does not have \\1"},
      {R"j({"rename": "(a)", "to": "\\0\\1"})j", "no such parentheses"},
      {R"j({"rename": "(?i:a)", "to": "b"})j", "or flags"},
      {R"j({"split": "(a)(b)", "to": ["\\1.\\2", "\\2.\\1"]})j", "in other orders"},
      {R"j({"unstack": "a", "to": "{}.{}"})j", "{} twice"},
  };
  for (const auto& [rule, words] : wrong) {
    const auto back = InverseOf(R"j({"rename": "x", "to": "y"}, )j" + rule);
    EXPECT_THAT(back, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid)) << rule;
    EXPECT_THAT(back, Says("inverting rule 2 of the view (")) << rule;
    EXPECT_THAT(back, Says(words)) << rule;
  }
}

TEST(Inverse, IsRefusedForWhatTheViewDoesNotMake) {
  TensorEntry tensor{.name = "layers.w", .dtype = Dtype::kU8};
  tensor.shape = {2};
  tensor.pieces = {Piece{.file = 0, .offset = 0, .bytes = 2, .box = {{0}, {2}}}};
  CheckpointIndex index;
  index.tensors = {tensor};
  const std::string view = R"j(inverse:{"rules": [{"rename": "^h\\.", "to": "layers."}]})j";
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex back, SeenThrough(view, index));
  EXPECT_EQ(back.tensors.front().name, "h.w");
  index.tensors.insert(index.tensors.begin(), tensor);
  index.tensors.front().name = "h.v";
  const auto seen = SeenThrough(view, index);
  EXPECT_THAT(seen, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(seen, Says("it would not make h.v as it is"));
}

TEST(NamedSets, AreAllSoundAndHaveInverses) {
  EXPECT_FALSE(Sets().empty());
  for (const NamedSet& set : Sets()) {
    const std::string text = fmt::format("{}:num_attention_heads=32,num_key_value_heads=8", set.name);
    EXPECT_OK(ReadView(text)) << set.name;
    EXPECT_OK(ReadView("inverse:" + text)) << set.name;
  }
}

TEST(NamedSets, TakeTheirNumbersFromAConfig) {
  const std::string config = R"j({"num_attention_heads": 8, "hidden_size": 64, "num_key_value_heads": 2})j";
  EXPECT_EQ(WithConfig("x", config), "x:num_attention_heads=8,num_key_value_heads=2");
  EXPECT_EQ(WithConfig("x:num_attention_heads=4", config), "x:num_attention_heads=4");
  EXPECT_EQ(WithConfig("x", "{"), "x");
  ASSERT_OK_AND_ASSIGN(const std::string rules, RulesOfSet(WithConfig("hf-llama-to-megatron", config)));
  EXPECT_THAT(rules, ::testing::HasSubstr(R"("shares": [4, 1, 1], "groups": 2)"));
  ASSERT_OK_AND_ASSIGN(const std::string alone, RulesOfSet("hf-llama-to-megatron:num_attention_heads=8"));
  EXPECT_THAT(alone, ::testing::HasSubstr(R"("shares": [1, 1, 1], "groups": 8)"));
}

TEST(NamedSets, SayWhatLacks) {
  EXPECT_THAT(ReadView("no-such-set"), Says("reading the view no-such-set: there is none of this name, only "));
  EXPECT_THAT(ReadView("hf-llama-to-megatron"), Says("it needs num_attention_heads; say hf-llama-to-megatron:"));
  EXPECT_THAT(ReadView("gpt2-conv1d:heads=2"), Says("\"heads=2\" is none of"));
  EXPECT_THAT(ReadView("hf-llama-to-megatron:num_attention_heads=0"), Says("is none of"));
  EXPECT_THAT(ReadView("hf-llama-to-megatron:num_attention_heads=8,num_key_value_heads=3"),
              Says("8 heads are not alike in 3 groups"));
}

}  // namespace
}  // namespace ckptd::view

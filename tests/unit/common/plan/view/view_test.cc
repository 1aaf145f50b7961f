#include "common/plan/view/view.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/piece.h"
#include "tests/testing/status_matchers.h"

namespace ckptd::view {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A source whose one file holds the numbers 0, 1, 2 ... as U16: an element's value says where it
// lies. Tensors follow each other in C order.
class ViewTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, const Shape& shape, Dtype dtype = Dtype::kU16) {
    TensorEntry tensor{.name = name, .dtype = dtype};
    tensor.shape = shape;
    const uint64_t bytes = ElementCount(shape) * BitsOf(dtype) / 8;
    tensor.pieces = {Piece{.file = 0, .offset = at_, .bytes = bytes, .box = {Shape(shape.size()), shape}}};
    at_ += bytes;
    index_.tensors.push_back(std::move(tensor));
  }

  absl::StatusOr<CheckpointIndex> See(const std::string& rules) {
    CheckpointIndex index = index_;
    std::sort(index.tensors.begin(), index.tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto view = ParseView("{\"rules\": [" + rules + "]}");
    if (!view.ok()) return view.status();
    return Apply(*view, std::move(index));
  }

  static std::vector<std::string> Names(const CheckpointIndex& index) {
    std::vector<std::string> names;
    for (const TensorEntry& tensor : index.tensors) names.push_back(tensor.name);
    return names;
  }

  // The elements in row-major order, read from where the pieces say. -1: none says, -2: several do.
  static std::vector<int> Values(const CheckpointIndex& index, const std::string& name) {
    const TensorEntry& tensor = *index.Find(name);
    std::vector<int> values(ElementCount(tensor.shape), -1);
    for (const Piece& piece : tensor.pieces) {
      EXPECT_EQ(WhyImpossible(piece, tensor, uint64_t{1} << 20), "") << name;
      const Shape strides = StridesOf(piece);
      for (uint64_t i = 0; i < ElementCount(piece.box.extents); ++i) {
        uint64_t rest = i, place = 0, element = piece.offset / 2, weight = 1;
        for (size_t dim = tensor.shape.size(); dim-- > 0;) {
          const uint64_t at = rest % piece.box.extents[dim];
          rest /= piece.box.extents[dim];
          place += (piece.box.offsets[dim] + at) * weight;
          weight *= tensor.shape[dim];
          element += at * strides[dim];
        }
        values[place] = values[place] == -1 ? static_cast<int>(element) : -2;
      }
    }
    return values;
  }

  CheckpointIndex index_;
  uint64_t at_ = 0;
};

TEST_F(ViewTest, RenamesWhereverAPatternMatches) {
  Add("transformer.h.0.w", {1});
  Add("transformer.h.1.w", {1});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen, See(R"j({"rename": "^transformer\\.h\\.(\\d+)", "to": "layers.\\1"})j"));
  EXPECT_THAT(Names(seen), ElementsAre("layers.0.w", "layers.1.w"));
}

TEST_F(ViewTest, NamesMayChangePlaces) {
  Add("a", {1});
  Add("b", {1});
  index_.aliases = {{"c", "a"}};
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"rename": "^a$", "to": "x"}, {"rename": "^b$", "to": "a"}, {"rename": "^x$", "to": "b"})j"));
  EXPECT_THAT(Values(seen, "b"), ElementsAre(0));
  EXPECT_THAT(Values(seen, "a"), ElementsAre(1));
  EXPECT_EQ(seen.aliases.at("c"), "b");
}

TEST_F(ViewTest, RefusesTwoTensorsOfOneName) {
  Add("a.0", {1});
  Add("a.1", {1});
  const auto seen = See(R"j({"rename": "\\d", "to": ""})j");
  EXPECT_THAT(seen, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(seen, Says("it would be called a., as another tensor is"));
}

TEST_F(ViewTest, TransposesByStrides) {
  Add("w", {2, 3});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen, See(R"j({"transpose": "w"})j"));
  EXPECT_THAT(seen.Find("w")->shape, ElementsAre(3, 2));
  EXPECT_THAT(Values(seen, "w"), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST_F(ViewTest, TransposedTwiceATensorLiesInCOrderAgain) {
  Add("w", {2, 3, 2});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"transpose": "w", "axes": [2, 0, 1]}, {"transpose": "w", "axes": [1, 2, 0]})j"));
  EXPECT_THAT(seen.Find("w")->shape, ElementsAre(2, 3, 2));
  EXPECT_THAT(seen.Find("w")->pieces.front().strides, IsEmpty());
}

TEST_F(ViewTest, SplitsIntoEqualPartsOrBySizes) {
  Add("m.qkv", {6, 2});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex equal,
                       See(R"j({"split": "(.*)\\.qkv", "to": ["\\1.q", "\\1.k", "\\1.v"]})j"));
  EXPECT_THAT(Names(equal), ElementsAre("m.k", "m.q", "m.v"));
  EXPECT_THAT(Values(equal, "m.k"), ElementsAre(4, 5, 6, 7));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex sized,
                       See(R"j({"split": "(.*)\\.qkv", "to": ["\\1.q", "\\1.k", "\\1.v"], "sizes": [4, 1, 1]})j"));
  EXPECT_THAT(Values(sized, "m.q"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Values(sized, "m.v"), ElementsAre(10, 11));
}

TEST_F(ViewTest, SplitsWhatGroupedAttentionAlternates) {
  // Two groups, each with the rows of two heads of q, one of k and one of v.
  Add("qkv", {8});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"split": "qkv", "to": ["q", "k", "v"], "sizes": [4, 2, 2], "groups": 2})j"));
  EXPECT_THAT(Values(seen, "q"), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(Values(seen, "k"), ElementsAre(2, 6));
  EXPECT_THAT(Values(seen, "v"), ElementsAre(3, 7));
  EXPECT_EQ(seen.Find("k")->pieces.size(), 1u) << "single elements lie at one distance";
}

TEST_F(ViewTest, SharesAreSizesOfAnyModel) {
  Add("qkv", {8});
  const std::string parts = R"j(["q", "k", "v"])j", how = R"j("shares": [2, 1, 1], "groups": 2)j";
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"split": "qkv", "to": )j" + parts + ", " + how + "}"));
  EXPECT_THAT(Values(seen, "q"), ElementsAre(0, 1, 4, 5));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex again,
                       See(R"j({"split": "qkv", "to": )j" + parts + ", " + how + R"j(}, {"fuse": )j" + parts +
                           R"j(, "to": "qkv", )j" + how + "}"));
  EXPECT_THAT(Values(again, "qkv"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(See(R"j({"split": "qkv", "to": )j" + parts + R"j(, "shares": [1, 1, 1]})j"), Says("not 3 equal parts"));
  EXPECT_THAT(See(R"j({"split": "qkv", "to": ["q", "k"]}, {"fuse": ["q", "k"], "to": "qkv", "sizes": [6, 2]})j"),
              Says("to q: its axis 0 has 4 elements, and the rule says 6"));
}

TEST_F(ViewTest, RulesOfAStrangerCostABoundedNumberOfSteps) {
  Add("empty", {0});
  Add("w", {uint64_t{1} << 40}, Dtype::kU8);
  const char* const kGroups = R"j("groups": 4611686018427387904)j";  // 2^62
  EXPECT_THAT(See(fmt::format(R"j({{"split": "empty", "to": ["a", "b"], {}}})j", kGroups)), Says("and no 46116"));
  EXPECT_THAT(See(fmt::format(R"j({{"split": "empty", "to": ["a", "b"]}}, {{"fuse": ["a", "b"], "to": "c", {}}})j", kGroups)),
              Says("too many pieces"));
  EXPECT_THAT(See(R"j({"split": "empty", "to": ["a", "b"]}, {"fuse": ["a", "b"], "to": "c", "groups": 2})j"),
              Says("it has no elements"));
  EXPECT_THAT(See(R"j({"unstack": "w", "to": "w.{}"})j"), Says("too many pieces of too many tensors"));
  EXPECT_OK(See(R"j({"split": "w", "to": ["a", "b"], "groups": 549755813888})j")) << "one piece each";
  EXPECT_THAT(See(R"j({"split": "w", "to": ["a", "b"], "sizes": [0, 1099511627776], "groups": 274877906944})j"),
              Says("too many pieces"));
}

TEST_F(ViewTest, FusesWhatItSplits) {
  Add("qkv", {12, 3});
  for (const char* how : {R"j(, "axis": 0)j", R"j(, "axis": 0, "groups": 2)j", R"j(, "axis": 1)j"}) {
    ASSERT_OK_AND_ASSIGN(
        const CheckpointIndex seen,
        See(fmt::format(R"j({{"split": "qkv", "to": ["q", "k", "v"]{}}}, {{"fuse": ["q", "k", "v"], "to": "qkv"{}}})j",
                        how, how)));
    std::vector<int> all(36);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(Values(seen, "qkv"), all) << how;
  }
}

TEST_F(ViewTest, FusesTheSetsThatParenthesesTellApart) {
  for (const char* layer : {"0", "1"}) {
    for (const char* part : {"up", "gate"}) Add(fmt::format("l.{}.{}", layer, part), {1, 2});
  }
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"fuse": ["l.(\\d)\\.gate", "l.(\\d)\\.up"], "to": "l.\\1.both"})j"));
  EXPECT_THAT(Names(seen), ElementsAre("l.0.both", "l.1.both"));
  EXPECT_THAT(Values(seen, "l.1.both"), ElementsAre(6, 7, 4, 5));
}

TEST_F(ViewTest, ATensorIsOnePartOnly) {
  Add("a.q", {2});
  EXPECT_THAT(See(R"j({"fuse": ["(.*)\.q", "(a)\.."], "to": "\1"})j"), Says("to a.q: two of its patterns match it"));
}

TEST_F(ViewTest, NamesThePartThatASetLacks) {
  Add("l.0.gate", {1});
  Add("l.1.up", {1});
  Add("l.1.gate", {1});
  const auto seen = See(R"j({"fuse": ["l.(\\d)\\.gate", "l.(\\d)\\.up"], "to": "l.\\1.both"})j");
  EXPECT_THAT(seen, Says("to l.0.gate: the checkpoint lacks a part to go with it, which l.(\\d)\\.up matches"));
}

TEST_F(ViewTest, StacksByNumberNotByName) {
  for (int i = 0; i < 11; ++i) Add(fmt::format("e.{}.w", i), {2});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"stack": "e\\.(?P<index>\\d+)\\.w", "to": "e.w"})j"));
  EXPECT_THAT(seen.Find("e.w")->shape, ElementsAre(11, 2));
  std::vector<int> all(22);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(Values(seen, "e.w"), all);
}

TEST_F(ViewTest, UnstacksAlongAnyAxis) {
  Add("e.w", {2, 3});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen,
                       See(R"j({"unstack": "(e)\\.w", "to": "\\1.{}.w", "axis": 1})j"));
  EXPECT_THAT(Names(seen), ElementsAre("e.0.w", "e.1.w", "e.2.w"));
  EXPECT_THAT(Values(seen, "e.1.w"), ElementsAre(1, 4));
}

TEST_F(ViewTest, NamesTheNumberThatAStackLacks) {
  Add("e.0.w", {2});
  Add("e.2.w", {2});
  EXPECT_THAT(See(R"j({"stack": "e\\.(?P<index>\\d+)\\.w", "to": "e.w"})j"), Says("number 1 of e.w is not there"));
}

TEST_F(ViewTest, SlicesAnAxis) {
  Add("w", {4, 2});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen, See(R"j({"slice": "w", "begin": 1, "end": 3})j"));
  EXPECT_THAT(Values(seen, "w"), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(See(R"j({"slice": "w", "begin": 1, "end": 5})j"), Says("its axis 0 has 4 elements, and no [1, 5)"));
}

TEST_F(ViewTest, TiesAndUnties) {
  Add("embed", {2});
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex tied, See(R"j({"tie": "embed", "to": "head"})j"));
  EXPECT_EQ(tied.aliases.at("head"), "embed");
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex apart, See(R"j({"tie": "embed", "to": "head"}, {"untie": "head"})j"));
  EXPECT_THAT(Names(apart), ElementsAre("embed", "head"));
  EXPECT_EQ(Values(apart, "head"), Values(apart, "embed"));
}

TEST_F(ViewTest, ATensorWithSeveralNamesIsChangedUnderTheNameThatMatches) {
  Add("embed", {2, 2});
  index_.aliases = {{"head", "embed"}};
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen, See(R"j({"transpose": "head"})j"));
  EXPECT_THAT(Values(seen, "embed"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Values(seen, "head"), ElementsAre(0, 2, 1, 3));
}

TEST_F(ViewTest, SubByteElementsAreNotCutWithinAByte) {
  Add("w", {4, 3}, Dtype::kF4);
  EXPECT_THAT(See(R"j({"transpose": "w"})j"), Says("smaller than a byte"));
  EXPECT_THAT(See(R"j({"slice": "w", "begin": 1, "end": 3})j"), Says("begin within a byte"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex seen, See(R"j({"slice": "w", "begin": 2, "end": 4})j"));
  EXPECT_EQ(seen.Find("w")->pieces.front().offset, 3u);
}

TEST_F(ViewTest, ARuleThatMatchesNothingIsAMistakeUnlessItIsOptional) {
  Add("w", {1});
  EXPECT_THAT(See(R"j({"drop": "v"})j"), Says("applying rule 1 of the view (drop v): it matches no tensor"));
  EXPECT_OK(See(R"j({"drop": "v", "optional": true})j"));
}

TEST_F(ViewTest, SaysWhatIsWrongInARule) {
  const std::map<std::string, std::string> wrong = {
      {R"j({})j", "rule 1: it has none of the keys rename, transpose"},
      {R"j({"drop": "(" })j", "patterns are those of RE2"},
      {R"j({"drop": "a", "untie": "b"})j", "it is both \"untie\" and \"drop\""},
      {R"j({"drop": "a", "to": "b"})j", "\"drop\" takes no \"to\""},
      {R"j({"split": "a", "to": "b"})j", "\"to\" is no list of two or more texts"},
      {R"j({"rename": "a", "to": "\\1"})j", "rule 1: \\1: "},
      {R"j({"fuse": ["(a)", "b"], "to": "c"})j", "different numbers of parentheses"},
      {R"j({"stack": "a", "to": "b"})j", "no (?P<index>"},
      {R"j({"unstack": "a", "to": "b"})j", "no {}"},
      {R"j({"transpose": "a", "axes": [0, 2]})j", "are not 0, 1 and so on"},
      {R"j({"split": "a", "to": ["b", "c"], "shares": [0, 1]})j", "a share is 0"},
      {R"j({"split": "a", "to": ["b", "c"], "sizes": [1, 1], "shares": [1, 1]})j", "sizes and shares"},
      {R"j({"fuse": ["a", "b"], "to": "c", "sizes": [1]})j", "1 sizes for 2 parts"},
      {R"j({"slice": "a", "begin": -1, "end": 2})j", "\"begin\" is no whole number"},
  };
  for (const auto& [rule, words] : wrong) {
    const auto seen = See(rule);
    EXPECT_THAT(seen, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid)) << rule;
    EXPECT_THAT(seen, Says(words)) << rule;
  }
}

}  // namespace
}  // namespace ckptd::view

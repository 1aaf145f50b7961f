#include "common/source/formats/dcp/part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "common/source/pickle/pickle.h"
#include "tests/testing/dcp_writer.h"
#include "tests/testing/status_matchers.h"

namespace ckptd::dcp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A key, and its path; a key that ends with "!" is an object.
using Keys = std::vector<std::pair<std::string, std::vector<std::string>>>;

class ChoosePartTest : public testing::Test {
 protected:
  void Save(const Keys& keys) {
    DcpWriter writer;
    for (const auto& [key, path] : keys) {
      if (key.ends_with('!')) {
        writer.AddObject(key, path, "__0_0.distcp", "N");
      } else {
        writer.AddTensor(key, path, Dtype::kU8, {1}, {{"__0_0.distcp", {0}, {1}, "x"}});
      }
    }
    const std::string bytes = writer.Metadata();
    metadata_ = Metadata::Make(
                    std::move(pickle::Parse(std::as_bytes(std::span(bytes))).value().document))
                    .value();
  }
  absl::StatusOr<Part> Choose(const std::string& part) const {
    Listing listing;
    listing.source = "/d";
    listing.part = part;
    return ChoosePart(listing, metadata_->stored());
  }
  std::vector<std::string> Names(const std::string& part) const {
    std::vector<std::string> names;
    const Part chosen = Choose(part).value();
    for (const Chosen& one : chosen.entries) names.push_back(one.name);
    return names;
  }

  std::optional<Metadata> metadata_;
};

TEST_F(ChoosePartTest, KeepsTheNamesOfWhatElseThereIs) {
  Save({{"model.w", {"model", "w"}}, {"scheduler.step!", {"scheduler", "step!"}}});
  EXPECT_THAT(Names("extra"), ElementsAre("scheduler.step!"));
}

TEST_F(ChoosePartTest, TakesTheModelWithoutItsPrefixByDefault) {
  Save({{"model.a.w", {"model", "a.w"}},
        {"optimizer.state.a.w.step", {"optimizer", "state", "a.w", "step"}},
        {"optimizer.lr!", {"optimizer", "lr!"}},
        {"step!", {"step!"}}});
  EXPECT_THAT(Names(""), ElementsAre("a.w"));
  EXPECT_THAT(Names("model"), ElementsAre("a.w"));
  EXPECT_EQ(Choose("")->remark,
            "1 of its 4 entries are read, part \"model\", by their names without \"model.\"; name "
            "/d#optimizer, #extra, #all for others");
  EXPECT_THAT(Names("optimizer"), ElementsAre("state.a.w.step", "lr!"));
  EXPECT_THAT(Names("extra"), ElementsAre("step!"));
  EXPECT_THAT(Names("all"),
              ElementsAre("model.a.w", "optimizer.state.a.w.step", "optimizer.lr!", "step!"));
  EXPECT_EQ(Choose("all")->remark, "");
}

TEST_F(ChoosePartTest, SaysWhatEntriesAreToATraining) {
  Save({{"model.w", {"model", "w"}},
        {"optim.state.w.step", {"optim", "state", "w", "step"}},
        {"optim.lr!", {"optim", "lr!"}},
        {"seed", {"seed"}}});
  ASSERT_OK_AND_ASSIGN(const Part part, Choose("all"));
  EXPECT_THAT(part.groups, ElementsAre("", "model", "optim"));
  std::vector<std::pair<EntryKind, uint32_t>> kinds;
  for (const Chosen& chosen : part.entries) kinds.emplace_back(chosen.kind, chosen.group);
  EXPECT_THAT(kinds, ElementsAre(std::pair(EntryKind::kParameter, 1u),
                                 std::pair(EntryKind::kOptimizer, 2u),
                                 std::pair(EntryKind::kObject, 2u),
                                 std::pair(EntryKind::kParameter, 0u)));
}

TEST_F(ChoosePartTest, TakesAllThatIsNothingElseWhereNoGroupIsTheModel) {
  Save({{"layers.0.w", {"layers.0.w"}},
        {"optimizer.state.w.step", {"optimizer", "state.w.step"}},
        {"lr_scheduler.epoch!", {"lr_scheduler", "epoch!"}},
        {"decoder.w", {"decoder", "w"}}});
  EXPECT_THAT(Names(""), ElementsAre("layers.0.w", "decoder.w"));
  EXPECT_THAT(Names("lr_scheduler"), ElementsAre("epoch!"));
  EXPECT_THAT(Names("decoder"), ElementsAre("w"));
}

TEST_F(ChoosePartTest, TakesTheOptimizerWhereThereIsNothingElse) {
  Save({{"optimizer.state.w.step", {"optimizer", "state", "w", "step"}}});
  EXPECT_THAT(Names(""), ElementsAre("state.w.step"));
  Save({{"optimizer_0.s", {"optimizer_0", "s"}}, {"optimizer_1.s", {"optimizer_1", "s"}}});
  EXPECT_THAT(Names(""), ElementsAre("optimizer_0.s", "optimizer_1.s"));
}

TEST_F(ChoosePartTest, LooksBelowTheOneKeyThatAllLieUnder) {
  Save({{"app.model.w", {"app", "model", "w"}}, {"app.optim.lr!", {"app", "optim", "lr!"}}});
  EXPECT_THAT(Names(""), ElementsAre("w"));
  EXPECT_THAT(Names("optimizer"), ElementsAre("lr!"));
  EXPECT_THAT(Choose("")->remark, HasSubstr("without \"app.model.\""));
}

TEST_F(ChoosePartTest, GoesByNamesWhereNobodyNotedPaths) {
  // As Megatron-Core saves.
  Save({{"model.decoder.w", {}}, {"optimizer.state.exp_avg.model.decoder.w", {}},
        {"rng_state/shard_0.0_1.1!", {}}});
  EXPECT_THAT(Names(""), ElementsAre("decoder.w"));
  EXPECT_THAT(Names("rng_state"), ElementsAre("rng_state/shard_0.0_1.1!"));
  Save({{"decoder.w", {}}, {"embedding.w", {}}, {"optimizer.state.exp_avg.decoder.w", {}}});
  EXPECT_THAT(Names(""), ElementsAre("decoder.w", "embedding.w"));
}

TEST_F(ChoosePartTest, KeepsAPrefixThatNotAllOfAModelHave) {
  Save({{"model.layers.0.w", {}}, {"lm_head.w", {}}});
  EXPECT_THAT(Names(""), ElementsAre("model.layers.0.w", "lm_head.w"));
  Save({{"model.layers.0.w", {"model.layers.0.w"}}, {"lm_head.w", {"lm_head.w"}}});
  EXPECT_THAT(Names(""), ElementsAre("model.layers.0.w", "lm_head.w"));
  EXPECT_EQ(Choose("")->remark, "");
}

TEST_F(ChoosePartTest, ListsThePartsWhereTheOneAskedForIsMissing) {
  Save({{"model.w", {"model", "w"}}, {"rng.torch", {"rng", "torch"}}});
  EXPECT_THAT(Choose("optimizer"),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
  EXPECT_THAT(Choose("optimizer"), Says("it has no part \"optimizer\"; name one that it has "
                                        "(#model, #extra, #all, #rng)"));
}

TEST_F(ChoosePartTest, NamesNoOtherPartsWhereThereAreNone) {
  Save({{"model.w", {"model", "w"}}, {"model.b", {"model", "b"}}});
  EXPECT_EQ(Choose("")->remark,
            "its names are read without \"model.\"; name /d#all for them as they are");
}

TEST_F(ChoosePartTest, TakesNothingOfNothing) {
  Save({});
  EXPECT_THAT(Names(""), IsEmpty());
  EXPECT_THAT(Names("model"), IsEmpty());
}

}  // namespace
}  // namespace ckptd::dcp

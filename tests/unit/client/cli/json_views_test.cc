#include "client/cli/json_views.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

nlohmann::json Parse(const std::string& text) { return nlohmann::json::parse(text); }

TEST(JsonViews, KeepIntegersExact) {
  CheckpointInfo info;
  info.slab_bytes = UINT64_MAX;
  EXPECT_EQ(Parse(ToJson(info))["slab_bytes"].get<uint64_t>(), UINT64_MAX);
}

TEST(JsonViews, NameStatesAndTimes) {
  CheckpointInfo info;
  info.state = CheckpointState::kActive;
  info.progress.stage = LoadStage::kPublishing;
  info.create_time = TimePoint(std::chrono::milliseconds(1'700'000'000'250));
  const nlohmann::json json = Parse(ToJson(info));
  EXPECT_EQ(json["state"], "ACTIVE");
  EXPECT_EQ(json["progress"]["stage"], "PUBLISHING");
  EXPECT_EQ(json["create_time"], "2023-11-14T22:13:20.250Z");
  EXPECT_TRUE(json["active_time"].is_null());
  EXPECT_TRUE(json["failure"].is_null());
}

TEST(JsonViews, AreAsciiWhateverNamesHold) {
  SourceInfo source;
  source.source = "/m\x1b\x7f\xff\xc2\x9b";
  const std::string text = ToJson(source, true);
  for (const char c : text) {
    EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f)) << static_cast<int>(c);
  }
  EXPECT_NO_THROW(Parse(text));
}

TEST(JsonViews, PutErrorsOnOneLine) {
  const std::string text = ErrorJson(MakeError(absl::StatusCode::kNotFound,
                                               reason::kCheckpointNotFound, "a\nb", {{"k", "v"}}));
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const nlohmann::json error = Parse(text)["error"];
  EXPECT_EQ(error["code"], "NOT_FOUND");
  EXPECT_EQ(error["reason"], "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(error["message"], "a?b");
  EXPECT_EQ(error["facts"]["k"], "v");
}

TEST(JsonViews, NameTheFileOfAnErrorSoThatItCanBeOpened) {
  const std::string text = ErrorJson(MakeError(absl::StatusCode::kNotFound,
                                               reason::kSourceNotFound, "x", {{"file", "/m\xff"}}));
  EXPECT_EQ(Parse(text)["error"]["facts"]["file"], "file:///m%FF");
}

TEST(JsonViews, GiveTheTensorTableOnlyOnDemand) {
  SourceInfo source;
  source.files = {{"/m/a.safetensors", 100}};
  source.tensors = {{"w", Dtype::kBF16, {2, 3}, 0, 64, 12}};
  EXPECT_FALSE(Parse(ToJson(source, false)).contains("tensors"));
  const nlohmann::json tensor = Parse(ToJson(source, true))["tensors"][0];
  EXPECT_EQ(tensor["dtype"], "BF16");
  EXPECT_EQ(tensor["file"], "/m/a.safetensors");
  EXPECT_EQ(tensor["shape"].dump(), "[2,3]");
}

TEST(JsonViews, ListThePiecesOfATensorThatIsNotInOne) {
  SourceInfo source;
  source.files = {{"/m/a", 100}, {"/m/b", 100}};
  SourceTensor& tensor = source.tensors.emplace_back();
  tensor.name = "w";
  tensor.dtype = Dtype::kU8;
  tensor.shape = {2, 3};
  tensor.kind = EntryKind::kOptimizer;
  tensor.group = "optimizer";
  tensor.pieces = {{0, 8, 3, {{0, 0}, {1, 3}}}, {1, 0, 3, {{1, 0}, {1, 3}}, {1, 2}}};
  const nlohmann::json one = Parse(ToJson(source, true))["tensors"][0];
  EXPECT_EQ(one["kind"], "optimizer");
  EXPECT_EQ(one["group"], "optimizer");
  ASSERT_EQ(one["pieces"].size(), 2u);
  EXPECT_EQ(one["pieces"][0]["strides"].dump(), "[3,1]");
  EXPECT_EQ(one["pieces"][1]["file"], "/m/b");
  EXPECT_EQ(one["pieces"][1]["begin"].dump(), "[1,0]");
  EXPECT_EQ(one["pieces"][1]["strides"].dump(), "[1,2]");
  tensor.pieces = {{0, 8, 6, {{0, 0}, {2, 3}}}};
  EXPECT_FALSE(Parse(ToJson(source, true))["tensors"][0].contains("pieces"));
}

TEST(JsonViews, GiveEmptyListsAsLists) {
  EXPECT_TRUE(Parse(ToJson(std::vector<CheckpointInfo>()))["checkpoints"].is_array());
  EXPECT_TRUE(Parse(ToJson(std::vector<RankLease>()))["leases"].is_array());
  EXPECT_TRUE(Parse(ToJson(PlanSummary(), {}, nullptr))["warnings"].is_array());
}

}  // namespace
}  // namespace ckptd::cli

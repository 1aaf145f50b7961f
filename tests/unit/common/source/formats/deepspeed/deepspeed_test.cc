#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/formats/deepspeed/format.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/rank_files.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {
namespace {

using pickles::Dict;
using pickles::Int;
using pickles::List;
using pickles::OrderedDict;
using pickles::Pairs;
using pickles::Text;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::SizeIs;

std::string Floats(const std::vector<float>& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::string Shapes(const std::vector<std::pair<std::string, Shape>>& shapes) {
  Pairs pairs;
  for (const auto& [name, shape] : shapes) pairs.emplace_back(Text(name), pickles::Size(shape));
  return OrderedDict(pairs);
}

class DeepSpeed : public testing::Test {
 protected:
  static constexpr char kFolder[] = "/d/step/";

  void WriteModel(const RankFile& file, const std::string& name = "mp_rank_00_model_states.pt") {
    storage_.Write(kFolder + name, file.File());
  }
  // A rank's part of the only group, and what else its optimizer's file says.
  void WritePart(uint64_t rank, uint64_t ranks, uint64_t stage, const std::vector<float>& part,
                 const Pairs& more = {}) {
    RankFile file;
    Pairs state = {{Text("zero_stage"), Int(static_cast<int64_t>(stage))},
                   {Text("partition_count"), List({Int(static_cast<int64_t>(ranks))})},
                   {Text(stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups"),
                    List({file.Tensor({part.size()}, Floats(part))})}};
    state.insert(state.end(), more.begin(), more.end());
    // The state of Adam: as many elements, and some of padding.
    std::vector<float> padded = part;
    padded.insert(padded.end(), 2, -1);
    const std::string average = file.Tensor({padded.size()}, Floats(padded));
    const std::string step = file.Tensor({}, Floats({9}));
    const std::string base = Dict(
        {{Text("state"), Dict({{Int(0), Dict({{Text("exp_avg"), average}, {Text("step"), step}})}})},
         {Text("lr"), pickles::Float("0.5")}});
    state.emplace_back(Text(stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"), base);
    file.Add("optimizer_state_dict", Dict(state));
    storage_.Write(kFolder + ("bf16_zero_pp_rank_" + std::to_string(rank)) +
                       "_mp_rank_00_optim_states.pt",
                   file.File());
  }
  // a (3) and b (2, 2), trained; c frozen, d a buffer; e is b.
  static RankFile SmallModel() {
    RankFile model;
    Pairs module;
    module.emplace_back(Text("a"), model.Tensor({3}, "aabbcc", "BFloat16", 2));
    const std::string b = model.Tensor({2, 2}, "11223344", "BFloat16", 2);
    module.emplace_back(Text("b"), b);
    module.emplace_back(Text("e"), model.Again({2, 2}, {2, 1}, 0, "BFloat16", 2));
    module.emplace_back(Text("c"), model.Tensor({1}, "zz", "BFloat16", 2));
    module.emplace_back(Text("d"), model.Tensor({1}, "longlong", "Long", 8));
    model.Add("module", OrderedDict(module));
    model.Add("buffer_names", List({Text("d")}));
    model.Add("param_shapes", List({Shapes({{"a", {3}}, {"b", {2, 2}}})}));
    model.Add("shared_params", Dict({{Text("e"), Text("b")}}));
    model.Add("dp_world_size", Int(2));
    model.Add("ds_config",
              Dict({{Text("zero_optimization"), Dict({{Text("stage"), Int(2)}})}}));
    return model;
  }
  void WriteSmall() {
    WriteModel(SmallModel());
    WritePart(0, 2, 2, {0, 1, 2, 3});
    WritePart(1, 2, 2, {4, 5, 6});
  }

  absl::StatusOr<OpenedCheckpoint> Read(const std::string& part = "",
                                        const std::string& source = "/d/step") {
    CKPTD_ASSIGN_OR_RETURN(Listing listing, ListSource(storage_, source));
    listing.part = part;
    EXPECT_TRUE(format_.Recognise(storage_, listing));
    auto opened = format_.ReadIndex(storage_, listing);
    if (opened.ok()) index_ = opened->index;
    return opened;
  }
  std::string BytesOf(const std::string& name) {
    const TensorEntry* const tensor = index_.Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    const std::vector<std::byte> bytes = TensorBytes(storage_, index_, *tensor);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::vector<float> NumbersOf(const std::string& name) {
    const std::string bytes = BytesOf(name);
    std::vector<float> numbers(bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }

  MemoryStorage storage_;
  DeepSpeedFormat format_;
  CheckpointIndex index_;
};

TEST_F(DeepSpeed, PutsParametersTogetherFromTheRanksParts) {
  WriteSmall();
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("a"), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf("b"), ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(index_.Find("b")->shape, (Shape{2, 2}));
  EXPECT_THAT(index_.files, SizeIs(3));
}

TEST_F(DeepSpeed, TakesTheRestFromTheModuleAndSaysSo) {
  WriteSmall();
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_EQ(BytesOf("c"), "zz");
  EXPECT_EQ(index_.Find("c")->dtype, Dtype::kBF16);
  EXPECT_EQ(BytesOf("d"), "longlong");
  EXPECT_EQ(index_.Find("d")->kind, EntryKind::kBuffer);
  EXPECT_THAT(opened.remarks,
              Contains(HasSubstr("1 parameters are not among the optimizer's 32-bit weights, and "
                                 "are taken from the module as it was saved: \"c\"")));
}

TEST_F(DeepSpeed, HasTiedParametersAsAliases) {
  WriteSmall();
  ASSERT_OK(Read());
  EXPECT_THAT(index_.aliases, ElementsAre(Pair("e", "b")));
}

// Before DeepSpeed kept their names, and where the first one is not the optimizer's.
TEST_F(DeepSpeed, FindsTiedParametersByTheirBytes) {
  RankFile model;
  Pairs module;
  module.emplace_back(Text("first"), model.Tensor({2}, "1122", "BFloat16", 2));
  module.emplace_back(Text("second"), model.Again({2}, {1}, 0, "BFloat16", 2));
  model.Add("module", OrderedDict(module));
  model.Add("param_shapes", Shapes({{"second", {2}}}));
  WriteModel(model);
  WritePart(0, 1, 1, {1, 2});
  ASSERT_OK(Read());
  EXPECT_THAT(index_.aliases, ElementsAre(Pair("first", "second")));
}

TEST_F(DeepSpeed, HeedsWhereRanksSayThatTheirFragmentsLie) {
  WriteModel(SmallModel());
  const auto fragment = [](int64_t begin, int64_t elements) {
    return pickles::Object(pickles::Global("deepspeed.utils.tensor_fragment", "fragment_address"),
                           Dict({{Text("start"), Int(begin)}, {Text("numel"), Int(elements)}}));
  };
  const auto mapping = [](const Pairs& fragments) {
    return Pairs{{Text("param_slice_mappings"), List({OrderedDict(fragments)})}};
  };
  // One element of padding behind a.
  WritePart(0, 2, 2, {0, 1, 2, -1, 3},
            mapping({{Text("a"), fragment(0, 3)}, {Text("b"), fragment(4, 1)}}));
  WritePart(1, 2, 2, {4, 5, 6}, mapping({{Text("b"), fragment(0, 3)}}));
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("b"), ElementsAre(3, 4, 5, 6));
}

TEST_F(DeepSpeed, HasTheModuleAsAPart) {
  WriteSmall();
  ASSERT_OK(Read("module"));
  EXPECT_EQ(BytesOf("a"), "aabbcc");
  EXPECT_EQ(index_.Find("e"), index_.Find("b"));
  EXPECT_THAT(index_.files, SizeIs(1));
}

TEST_F(DeepSpeed, HasWhatTheOptimizerKeepsAsAPart) {
  WriteSmall();
  ASSERT_OK(Read("optimizer"));
  EXPECT_THAT(NumbersOf("state.a.exp_avg"), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf("state.b.exp_avg"), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(NumbersOf("state.a.step"), ElementsAre(9));
  EXPECT_THAT(index_.aliases, ElementsAre(Pair("state.b.step", "state.a.step")));
  EXPECT_THAT(index_.values, ElementsAre(Pair("lr", "0.5")));
  const TensorEntry& tensor = index_.tensors[0];
  EXPECT_EQ(tensor.kind, EntryKind::kOptimizer);
  EXPECT_EQ(index_.groups[tensor.group], "optimizer");
}

// Each parameter is cut by itself: 3 elements in twos, 1 in ones.
TEST_F(DeepSpeed, PutsStage3Together) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile model;
    Pairs module;
    for (const char* name : {"a", "b", "tied", "frozen"}) {
      module.emplace_back(Text(name), model.Tensor({0}, "", "BFloat16", 2));
    }
    module.emplace_back(Text("buffer"), model.Tensor({1}, "buff"));
    model.Add("module", OrderedDict(module));
    model.Add("buffer_names", List({Text("buffer")}));
    model.Add("param_shapes", List({Shapes({{"a", {3}}, {"b", {}}})}));
    model.Add("frozen_param_shapes", Shapes({{"frozen", {3}}}));
    model.Add("frozen_param_fragments",
              OrderedDict({{Text("frozen"),
                            model.Tensor({2}, rank == 0 ? "f0f1" : "f2??", "BFloat16", 2)}}));
    model.Add("shared_params", rank == 0 ? Dict({{Text("tied"), Text("a")}}) : Dict({}));
    WriteModel(model, "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt");
  }
  WritePart(0, 2, 3, {0, 1, 3});
  WritePart(1, 2, 3, {2, -1, -1});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("a"), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf("b"), ElementsAre(3));
  EXPECT_EQ(BytesOf("frozen"), "f0f1f2");
  EXPECT_EQ(BytesOf("buffer"), "buff");
  EXPECT_THAT(index_.aliases, ElementsAre(Pair("tied", "a")));
  EXPECT_THAT(opened.remarks, Contains(HasSubstr("taken from the module as it was saved: "
                                                 "\"frozen\"")));
  ASSERT_OK(Read("optimizer"));
  EXPECT_THAT(NumbersOf("state.a.exp_avg"), ElementsAre(0, 1, 2));
  EXPECT_THAT(Read("module"),
              FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
}

TEST_F(DeepSpeed, ReadsTheModuleWhereThereIsNoZero) {
  RankFile model;
  model.Add("module", OrderedDict({{Text("a"), model.Tensor({1}, Floats({1}))}}));
  model.Add("optimizer", Dict({{Text("state"), Dict({{Int(0), model.Tensor({1}, Floats({2}))}})}}));
  WriteModel(model);
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("a"), ElementsAre(1));
  EXPECT_THAT(opened.remarks, SizeIs(0));
  ASSERT_OK(Read("optimizer"));
  EXPECT_THAT(NumbersOf("state.0"), ElementsAre(2));
}

TEST_F(DeepSpeed, FollowsLatest) {
  WriteSmall();
  storage_.Write("/d/latest", "step\n");
  storage_.Write("/d/zero_to_fp32.py", "");
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read("", "/d"));
  EXPECT_THAT(NumbersOf("a"), ElementsAre(0, 1, 2));
  EXPECT_EQ(index_.files.back().path, "/d/latest");
  EXPECT_THAT(opened.remarks, Contains(HasSubstr("the tag \"step\" counts")));
  ASSERT_OK_AND_ASSIGN(const Listing listing, ListSource(storage_, "/d"));
  EXPECT_TRUE(*format_.StillMeans(storage_, listing, index_.files));
  storage_.Write("/d/other/mp_rank_00_model_states.pt", "");
  storage_.Write("/d/latest", "other");
  EXPECT_FALSE(*format_.StillMeans(storage_, listing, index_.files));
}

TEST_F(DeepSpeed, RefusesATagThatIsNoFolderThere) {
  storage_.Write("/d/zero_to_fp32.py", "");
  storage_.Write("/secret/mp_rank_00_model_states.pt", "");
  for (const char* tag : {"../secret", "/secret", "..", ".", "", "gone"}) {
    storage_.Write("/d/latest", tag);
    const auto read = Read("", "/d");
    EXPECT_THAT(read, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid)) << tag;
    EXPECT_EQ(FactsOf(read.status())["file"], "/d/latest");
  }
}

TEST_F(DeepSpeed, ListsAllRanksThatAreMissing) {
  WriteModel(SmallModel());
  WritePart(1, 4, 2, {1});
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  for (const char* rank : {"0", "2", "3"}) {
    EXPECT_THAT(read, Says("\"bf16_zero_pp_rank_" + std::string(rank) +
                           "_mp_rank_00_optim_states.pt\""));
  }
  EXPECT_OK(Read("module"));
}

TEST_F(DeepSpeed, SaysWhatIsLackingWithoutAnyPart) {
  WriteModel(SmallModel());
  const auto read = Read();
  EXPECT_THAT(read, Says("it lacks \"zero_pp_rank_0_mp_rank_00_optim_states.pt\", "
                         "\"zero_pp_rank_1_mp_rank_00_optim_states.pt\"; "));
  EXPECT_THAT(read, Says("load the 16-bit weights (#module)"));
}

TEST_F(DeepSpeed, RefusesByNameWhatItDoesNotPutTogether) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"zero/a/fp32.pt", "a universal checkpoint"},
      {"layer_3_expert_1_mp_rank_00_model_states.pt", "experts in files of their own"},
      {"layer_00-model_00-model_states.pt", "layers of a pipeline"},
      {"mp_rank_01_model_states.pt", "tensor parallelism"}};
  for (const auto& [name, says] : cases) {
    storage_ = MemoryStorage();
    WriteModel(SmallModel());
    storage_.Write(kFolder + name, "");
    const auto read = Read();
    EXPECT_THAT(read, FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
    EXPECT_THAT(read, Says(says));
  }
  storage_ = MemoryStorage();
  storage_.Write("/u/latest_universal", "step_universal");
  EXPECT_THAT(Read("", "/u"), Says("a universal checkpoint"));
}

TEST_F(DeepSpeed, RefusesPartsOfDifferentSaves) {
  WriteModel(SmallModel());
  WritePart(0, 2, 2, {0, 1, 2, 3});
  WritePart(1, 2, 1, {4, 5, 6});
  EXPECT_THAT(Read(), Says("they are of different saves"));
  WritePart(1, 2, 2, {4, 5});
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(read, Says("the ranks' parts end before the last 1 of 4 elements of \"b\""));
  EXPECT_EQ(FactsOf(read.status())["file"], "/d/step/mp_rank_00_model_states.pt");
}

TEST_F(DeepSpeed, RefusesStatesThatAreNone) {
  WriteModel(RankFile());
  EXPECT_THAT(Read(), Says("it is no model state of DeepSpeed"));
  RankFile model;
  model.Add("module", OrderedDict());
  model.Add("param_shapes", List({OrderedDict({{Text("a"), Int(3)}})}));
  WriteModel(model);
  EXPECT_THAT(Read(), Says("parameter \"a\" is there twice, or has a shape"));
  WriteModel(SmallModel());
  RankFile optimizer;
  optimizer.Add("optimizer_state_dict", Dict({{Text("zero_stage"), Int(2)}}));
  storage_.Write("/d/step/zero_pp_rank_0_mp_rank_00_optim_states.pt", optimizer.File());
  EXPECT_THAT(Read(), Says("it has no single_partition_of_fp32_groups"));
}

TEST_F(DeepSpeed, LeavesFoldersToOthersThatHaveUsualWeights) {
  WriteSmall();
  storage_.Write("/d/latest", "step");
  storage_.Write("/d/model.safetensors", "");
  ASSERT_OK_AND_ASSIGN(Listing listing, ListSource(storage_, "/d"));
  EXPECT_FALSE(format_.Recognise(storage_, listing));
  listing.part = "optimizer";
  EXPECT_TRUE(format_.Recognise(storage_, listing));
  storage_.Write("/other/latest", "build 17");
  EXPECT_FALSE(format_.Recognise(storage_, *ListSource(storage_, "/other")));
}

TEST_F(DeepSpeed, HasNoOtherParts) {
  WriteSmall();
  EXPECT_THAT(Read("ema"), Says("it has no part \"ema\""));
}

}  // namespace
}  // namespace ckptd

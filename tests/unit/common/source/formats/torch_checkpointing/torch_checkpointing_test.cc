#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/formats/torch_checkpointing/format.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/rank_files.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"
#include "tests/testing/torch_checkpointing_writer.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using Metadata = TorchCheckpointingMetadata;

const Metadata::Mesh kTwo = {{2}, {0, 1}};

std::string Floats(const std::vector<float>& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

class TorchCheckpointing : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& bytes) {
    storage_.Write("/c/" + name, bytes);
  }
  void Write(const Metadata& metadata, const std::string& version = "2.0") {
    Write("metadata.pkl", metadata.File(version));
  }
  // A file of torch.save with one plain tensor of one dimension.
  static std::string TorchOf(const std::string& name, const std::vector<float>& numbers) {
    RankFile file;
    file.Add(name, file.Tensor({numbers.size()}, Floats(numbers)));
    return file.File();
  }
  static std::string TorchOfDTensor(const std::string& name, uint64_t rank, float number) {
    RankFile file;
    file.Add(name, pickles::DTensor({2}, file.Tensor({1}, Floats({number})),
                                    pickles::Mesh({{2}, {rank}, {0, 1}}), {pickles::Shard(0)}));
    return file.File();
  }
  // Item "model" of a tensor "w" of two numbers, one on each of two ranks.
  void WriteModel() {
    Metadata metadata(2);
    metadata.Add("model", R"(["w"])", {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
    Write(metadata);
    Write("model_0.pt", TorchOf("w", {1}));
    Write("model_1.pt", TorchOf("w", {2}));
  }
  Listing List(const std::string& part = "") {
    Listing listing = ListSource(storage_, "/c").value();
    listing.part = part;
    return listing;
  }
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& part = "") {
    const Listing listing = List(part);
    EXPECT_TRUE(format_.Recognise(storage_, listing));
    auto opened = format_.ReadIndex(storage_, listing);
    EXPECT_EQ(format_.Check(storage_, listing).ok() || !opened.ok(), true);
    if (opened.ok()) {
      index_ = opened->index;
      EXPECT_TRUE(format_.StillMeans(storage_, listing, index_.files).value_or(false));
    }
    return opened;
  }
  std::vector<float> NumbersOf(const std::string& name) {
    const TensorEntry* const tensor = index_.Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    const std::vector<std::byte> bytes = TensorBytes(storage_, index_, *tensor);
    std::vector<float> numbers(bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }

  MemoryStorage storage_;
  TorchCheckpointingFormat format_;
  CheckpointIndex index_;
};

TEST_F(TorchCheckpointing, PutsPartsOfSafetensorsTogetherAsItsMetadataSays) {
  Metadata metadata(2);
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({3, 2}, kTwo, {Metadata::Shard(0)})});
  metadata.Add("model", R"(["b"])", {Metadata::DTensor({2}, kTwo, {Metadata::Replicate()})});
  metadata.Add("model", R"(["n"])", {Metadata::DTensor({}, kTwo, {Metadata::Replicate()})});
  metadata.PutInto("model", "rank_{rank}/model.safetensors", "SafetensorsSerialization");
  Write(metadata);
  for (const float rank : {0.f, 1.f}) {
    const std::vector<float> rows = rank == 0 ? std::vector<float>{0, 1, 2, 3}
                                              : std::vector<float>{4, 5};
    Write("rank_" + std::to_string(static_cast<int>(rank)) + "/model.safetensors",
          SafetensorsOf({{{"w", Dtype::kF32, {rows.size() / 2, 2}}, Floats(rows)},
                         {{"b", Dtype::kF32, {2}}, Floats({7 + rank, 8})},
                         {{"n", Dtype::kF32, {}}, Floats({9 + rank})}},
                        {{"step", "5"}}));
  }
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(NumbersOf("b"), ElementsAre(7, 8));
  EXPECT_THAT(NumbersOf("n"), ElementsAre(9));
  EXPECT_THAT(index_.files, SizeIs(3));
  EXPECT_EQ(index_.files.back().path, "/c/metadata.pkl");
  EXPECT_THAT(index_.metadata, UnorderedElementsAre(Pair("step", "5"),
                                                    Pair("torch_checkpointing_version", "2.0")));
  EXPECT_THAT(opened.remarks, IsEmpty());
}

TEST_F(TorchCheckpointing, PutsPlainTensorsAndDTensorsOfTorchTogether) {
  Metadata metadata(2);
  for (const char* name : {R"(["plain"])", R"(["dtensor"])"}) {
    metadata.Add("model", name, {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  }
  Write(metadata);
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const auto number = static_cast<float>(rank);
    file.Add("plain", file.Tensor({1}, Floats({number})));
    file.Add("dtensor", pickles::DTensor({2}, file.Tensor({1}, Floats({5 + number})),
                                         pickles::Mesh({{2}, {rank}, {0, 1}}),
                                         {pickles::Shard(0)}));
    Write("model_" + std::to_string(rank) + ".pt", file.File());
  }
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("plain"), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf("dtensor"), ElementsAre(5, 6));
}

// FSDP cuts what tensor parallelism has cut; rank 1 has the place of (1, 0).
TEST_F(TorchCheckpointing, KnowsStridedShardsAndRanksInAnyOrder) {
  Metadata metadata(4);
  metadata.Add("model", R"(["w"])",
               {Metadata::DTensor({9}, {{2, 2}, {0, 2, 1, 3}},
                                  {Metadata::StridedShard(0, 2), Metadata::Shard(0)})});
  Write(metadata);
  Write("model_0.pt", TorchOf("w", {0, 1, 2}));
  Write("model_2.pt", TorchOf("w", {5, 6}));
  Write("model_1.pt", TorchOf("w", {3, 4}));
  Write("model_3.pt", TorchOf("w", {7, 8}));
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

TEST_F(TorchCheckpointing, PutsBoxesWhereTheirTensorsSayThatTheyAre) {
  Metadata metadata(2);
  metadata.Add("model", R"(["w"])",
               {Metadata::Boxes({5}, {{{0}, {1}, {2}}, {{4}, {0}, {1}}}, {0}),
                Metadata::Boxes({5}, {{{2}, {0}, {2}}}, {1})});
  Write(metadata);
  Write("model_0.pt", TorchOf("w", {4, 0, 1}));
  Write("model_1.pt", TorchOf("w", {2, 3}));
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4));
  Write("model_1.pt", TorchOf("w", {2}));
  EXPECT_THAT(Read(), Says("a shard of it leaves the rank's tensor"));
}

TEST_F(TorchCheckpointing, TakesTheLowestRanksWhereSeveralMeshesHaveATensor) {
  Metadata metadata(3);
  metadata.Add("model", R"(["tied"])",
               {Metadata::DTensor({2}, {{1}, {2}}, {Metadata::Shard(0)}),
                Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  Write(metadata);
  Write("model_0.pt", TorchOf("tied", {1}));
  Write("model_1.pt", TorchOf("tied", {2}));
  Write("model_2.pt", TorchOf("tied", {8, 9}));
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("tied"), ElementsAre(1, 2));
}

TEST_F(TorchCheckpointing, ReadsVersion1) {
  Metadata metadata(2);
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  metadata.Add("optimizer", R"(["state",0,"exp_avg"])",
               {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  metadata.PutInto("model", "m{rank}.pt", "TorchSerialization");
  Write(metadata, "1.0");
  for (uint64_t rank = 0; rank < 2; ++rank) {
    Write("m" + std::to_string(rank) + ".pt", TorchOf("w", {static_cast<float>(rank)}));
    RankFile file;
    const std::string state = pickles::Dict(
        {{pickles::Text("exp_avg"), file.Tensor({1}, Floats({static_cast<float>(3 + rank)}))}});
    file.Add("state", pickles::Dict({{pickles::Int(0), state}}));
    Write("optimizer_" + std::to_string(rank) + ".pt", file.File());
  }
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1));
  ASSERT_OK(Read("optimizer"));
  EXPECT_THAT(NumbersOf("state.0.exp_avg"), ElementsAre(3, 4));
  EXPECT_EQ(index_.tensors[0].kind, EntryKind::kOptimizer);
  EXPECT_EQ(index_.groups[index_.tensors[0].group], "optimizer");
}

TEST_F(TorchCheckpointing, RefusesOtherVersionsByTheirNumber) {
  Metadata metadata(1);
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({1}, {{1}, {0}}, {Metadata::Shard(0)})});
  Write(metadata, "3.0");
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(Read(), Says("version \"3.0\""));
}

TEST_F(TorchCheckpointing, HasItemsAsParts) {
  WriteModel();
  Write("progress_0.json", R"({"step": 7})");
  Write("progress_1.json", R"({"step": 8})");
  Write("rng_0.pt", TorchOf("cpu", {3}));
  Write("rng_1.pt", TorchOf("cpu", {4}));
  Write("step_0.pt", TorchZip(pickles::Int(9), {}));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(index_.tensors, SizeIs(1));
  EXPECT_THAT(NumbersOf("w"), ElementsAre(1, 2));
  EXPECT_THAT(opened.remarks, ElementsAre(HasSubstr("(#all, #model, #progress, #rng, #step)")));
  ASSERT_OK(Read("rng"));
  EXPECT_THAT(NumbersOf("rank_1.cpu"), ElementsAre(4));
  EXPECT_EQ(index_.tensors[0].kind, EntryKind::kBuffer);
  ASSERT_OK(Read("extra"));
  EXPECT_THAT(index_.values, ElementsAre(Pair("progress.rank_0", R"({"step": 7})"),
                                         Pair("progress.rank_1", R"({"step": 8})"),
                                         Pair("step.rank_0", "9")));
  ASSERT_OK(Read("all"));
  EXPECT_THAT(NumbersOf("model.w"), ElementsAre(1, 2));
  EXPECT_THAT(NumbersOf("rng.rank_0.cpu"), ElementsAre(3));
  EXPECT_THAT(Read("optimizer"), Says("none of its 4 items is part \"optimizer\""));
}

TEST_F(TorchCheckpointing, ListsAllFilesThatAreMissing) {
  Metadata metadata(4);
  const Metadata::Mesh mesh = {{4}, {0, 1, 2, 3}};
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({4}, mesh, {Metadata::Shard(0)})});
  Write(metadata);
  Write("model_2.pt", TorchOf("w", {2}));
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(Read(), Says("it lacks \"model_0.pt\", \"model_1.pt\", \"model_3.pt\"; "));
}

TEST_F(TorchCheckpointing, NeedsNoFileOfARankThatHasNothingOfItsOwn) {
  Metadata metadata(2);
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({2}, kTwo, {Metadata::Replicate()})});
  Write(metadata);
  Write("model_1.pt", TorchOf("w", {1, 2}));
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(1, 2));
}

TEST_F(TorchCheckpointing, SaysWhichTensorItsFilesDoNotHold) {
  WriteModel();
  Metadata metadata(2);
  for (const char* name : {R"(["w"])", R"(["v"])"}) {
    metadata.Add("model", name, {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  }
  Write(metadata);
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(read, Says("tensor \"v\" of /c/metadata.pkl"));
}

TEST_F(TorchCheckpointing, RefusesLocalTensorsThatTheMetadataDoesNotGive) {
  WriteModel();
  Write("model_1.pt", TorchOf("w", {2, 3}));
  EXPECT_THAT(Read(), Says("its local tensor is (2), and its placements give (1)"));
}

TEST_F(TorchCheckpointing, RefusesPathsThatLeadOutOfTheFolder) {
  for (const char* path : {"../model_{rank}.pt", "/etc/model_{rank}.pt"}) {
    Metadata metadata(1);
    metadata.Add("model", R"(["w"])", {Metadata::DTensor({1}, {{1}, {0}}, {Metadata::Shard(0)})});
    metadata.PutInto("model", path, "TorchSerialization");
    Write(metadata);
    EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
  }
}

TEST_F(TorchCheckpointing, RefusesOneFileOfTwoRanks) {
  Metadata metadata(2);
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  metadata.PutInto("model", "model.pt", "TorchSerialization");
  Write(metadata);
  EXPECT_THAT(Read(), Says("into file \"model.pt\", as another one of a rank"));
}

TEST_F(TorchCheckpointing, RefusesByNameWhatItDoesNotRead) {
  const auto with = [&](const std::string& group, const std::string& layout) {
    Metadata metadata(2);
    metadata.Add("model", R"(["w"])", {group});
    metadata.PutInto("model", "model_{rank}.pt", layout);
    Write(metadata);
    Write("model_0.pt", TorchOf("w", {1}));
    Write("model_1.pt", TorchOf("w", {2}));
    const auto read = Read();
    EXPECT_THAT(read, FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
    return MessageOf(read.status());
  };
  const std::string sharded = Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)});
  EXPECT_THAT(with(sharded, "PackedSerialization"), HasSubstr("\"PackedSerialization\""));
  EXPECT_THAT(with(Metadata::DTensor({2}, kTwo, {Metadata::TypeOf("Partial")}),
                   "TorchSerialization"),
              HasSubstr("placed as \"Partial\""));
  EXPECT_THAT(with(Metadata::Group("MyShards", {}, {0, 1}), "TorchSerialization"),
              HasSubstr("\"MyShards\", a class of the trainer"));
}

TEST_F(TorchCheckpointing, KeepsApartWhatOnlyTheTrainerCanPutTogether) {
  WriteModel();
  Metadata metadata(2);
  metadata.Add("model", R"(["w"])", {Metadata::DTensor({2}, kTwo, {Metadata::Shard(0)})});
  metadata.Add("dataloader", R"([])", {Metadata::Group("MyProgress", {}, {0, 1})});
  metadata.PutInto("dataloader", "dataloader.{rank}", "RawSerialization");
  Write(metadata);
  Write("dataloader.0", "abc");
  Write("dataloader.1", "de");
  ASSERT_OK(Read("dataloader"));
  ASSERT_THAT(index_.tensors, SizeIs(2));
  EXPECT_EQ(index_.tensors[1].name, "rank_1");
  EXPECT_EQ(index_.tensors[1].kind, EntryKind::kObject);
  EXPECT_EQ(index_.tensors[1].shape, Shape{2});
}

TEST_F(TorchCheckpointing, RefusesMetadataThatDoesNotHoldTogether) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Metadata::DTensor({2}, {{3}, {0, 1}}, {Metadata::Shard(0)}), "a mesh that is none"},
      {Metadata::DTensor({2}, {{2}, {0, 0}}, {Metadata::Shard(0)}), "a rank twice in its mesh"},
      {Metadata::DTensor({2}, kTwo, {}), "another number of placements"},
      {Metadata::DTensor({1ull << 40, 1ull << 40}, kTwo, {Metadata::Shard(0)}),
       "sizes that are none"},
      {Metadata::Boxes({2}, {{{0, 0}, {0}, {1}}}, {0}), "another number of dimensions"},
      {Metadata::DTensor({2}, {{2}, {}}, {Metadata::Shard(0)}), "it is on no rank"}};
  for (const auto& [group, says] : cases) {
    Metadata metadata(2);
    metadata.Add("model", R"(["w"])", {group});
    Write(metadata);
    EXPECT_THAT(Read(), Says(says));
    EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  }
}

TEST_F(TorchCheckpointing, ReadsTheMetadataOfAsManyRanksAsItReadsFiles) {
  for (const uint64_t ranks : {uint64_t{kMaxSourceFiles}, uint64_t{kMaxSourceFiles + 1}}) {
    Write("metadata.pkl",
          pickles::Pickle(pickles::Dict(
              {{pickles::Text("metadata"), pickles::Dict({})},
               {pickles::Text("world_size"), pickles::Int(static_cast<int64_t>(ranks))},
               {pickles::Text("version"), pickles::Text("2.0")}})));
    EXPECT_THAT(Read(), Says(ranks > kMaxSourceFiles ? "at most 100000 are read"
                                                     : "none of its 0 items is a model"));
  }
}

TEST_F(TorchCheckpointing, ReadsDTensorsWithoutMetadata) {
  Write("model_0.pt", TorchOfDTensor("w", 0, 1));
  Write("optimizer_0.pt", TorchOfDTensor("v", 0, 3));
  EXPECT_THAT(Read(), Says("it lacks \"model_1.pt\"; "));
  Write("model_1.pt", TorchOfDTensor("w", 1, 2));
  Write("optimizer_1.pt", TorchOfDTensor("v", 1, 4));
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(1, 2));
  ASSERT_OK(Read("optimizer"));
  EXPECT_THAT(NumbersOf("v"), ElementsAre(3, 4));
}

TEST_F(TorchCheckpointing, ReadsTheItemsOfOneRankWithoutMetadata) {
  Write("model_0.pt", TorchOf("w", {1, 2}));
  Write("step_0.pt", TorchZip(pickles::Int(9), {}));
  ASSERT_OK(Read("all"));
  EXPECT_THAT(NumbersOf("model.w"), ElementsAre(1, 2));
  EXPECT_THAT(index_.values, ElementsAre(Pair("step", "9")));
}

TEST_F(TorchCheckpointing, TakesNoNumberedFilesOfOthers) {
  const auto is_recognised = [&] { return format_.Recognise(storage_, List()); };
  Write("model_0.pt", TorchOf("w", {1}));
  Write("model_1.pt", TorchOf("w", {2}));
  EXPECT_FALSE(is_recognised());  // epochs
  Write("metadata.pkl",
        pickles::Pickle(pickles::Dict({{pickles::Text("author"), pickles::None()}})));
  EXPECT_FALSE(is_recognised());
}

TEST_F(TorchCheckpointing, LeavesAModelThatWasConsolidatedToSafetensors) {
  WriteModel();
  Write("model.safetensors.index.json", "{}");
  EXPECT_FALSE(format_.Recognise(storage_, List()));
  EXPECT_TRUE(format_.Recognise(storage_, List("all")));
}

TEST_F(TorchCheckpointing, AsksWhichItemIsMeantWhereNoneIsAModel) {
  Metadata metadata(1);
  for (const char* item : {"actor", "critic"}) {
    metadata.Add(item, R"(["w"])", {Metadata::DTensor({1}, {{1}, {0}}, {Metadata::Shard(0)})});
    Write(std::string(item) + "_0.pt", TorchOf("w", {1}));
  }
  Write(metadata);
  EXPECT_THAT(Read(), Says("none of its 2 items is a model; name what to load (#all, #actor, "
                           "#critic)"));
  ASSERT_OK(Read("critic"));
  EXPECT_THAT(NumbersOf("w"), ElementsAre(1));
}

}  // namespace
}  // namespace ckptd

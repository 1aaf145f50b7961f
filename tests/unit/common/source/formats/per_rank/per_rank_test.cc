#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/formats/per_rank/format.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/rank_files.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensor_bytes.h"

namespace ckptd {
namespace {

using pickles::DTensor;
using pickles::Dict;
using pickles::Mesh;
using pickles::MeshOfRank;
using pickles::Replicate;
using pickles::Shard;
using pickles::ShardedTensor;
using pickles::ShardPlace;
using pickles::StridedShard;
using pickles::Text;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

std::string Floats(const std::vector<float>& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

class PerRank : public testing::Test {
 protected:
  // The file of a rank: accelerate's by default.
  void Write(uint64_t rank, const RankFile& file, const std::string& before = "pytorch_model_fsdp_0_",
             const std::string& extension = ".bin") {
    storage_.Write("/p/" + before + "rank" + std::to_string(rank) + extension, file.File());
  }
  // One DTensor "w" of these rows on each rank.
  void WriteRows(const Shape& shape, const std::vector<MeshOfRank>& meshes,
                 const std::vector<std::string>& placements,
                 const std::vector<std::vector<float>>& rows) {
    for (size_t rank = 0; rank < meshes.size(); ++rank) {
      RankFile file;
      Shape local = shape;
      local[0] = rows[rank].size();
      file.Add("w", DTensor(shape, file.Tensor(local, Floats(rows[rank])), Mesh(meshes[rank]),
                            placements));
      Write(rank, file);
    }
  }
  absl::StatusOr<OpenedCheckpoint> Read(const std::string& part = "") {
    CKPTD_ASSIGN_OR_RETURN(Listing listing, ListSource(storage_, "/p"));
    listing.part = part;
    EXPECT_TRUE(format_.Recognise(storage_, listing));
    auto opened = format_.ReadIndex(storage_, listing);
    if (opened.ok()) index_ = opened->index;
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
  PerRankFormat format_;
  CheckpointIndex index_;
};

TEST_F(PerRank, PutsUnevenRowsTogether) {
  WriteRows({5}, {{{4}, {0}, {0, 1, 2, 3}}, {{4}, {1}, {0, 1, 2, 3}}, {{4}, {2}, {0, 1, 2, 3}},
                  {{4}, {3}, {0, 1, 2, 3}}},
            {Shard(0)}, {{0, 1}, {2, 3}, {4}, {}});
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(index_.tensors[0].kind, EntryKind::kParameter);
}

TEST_F(PerRank, TakesEqualShardsForWhatTheirPlacementsSay) {
  const std::vector<uint64_t> ranks = {0, 1};
  WriteRows({4}, {{{2}, {0}, ranks}, {{2}, {1}, ranks}}, {Shard(0)}, {{7, 7}, {7, 7}});
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(7, 7, 7, 7));
}

TEST_F(PerRank, ReadsOneOfSeveralReplicas) {
  const std::vector<uint64_t> ranks = {0, 1, 2, 3};
  WriteRows({3}, {{{2, 2}, {0, 0}, ranks}, {{2, 2}, {0, 1}, ranks}, {{2, 2}, {1, 0}, ranks},
                  {{2, 2}, {1, 1}, ranks}},
            {Replicate(), Shard(0)}, {{0, 1}, {2}, {8, 8}, {8}});
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2));
}

// FSDP cuts what tensor parallelism has cut: rank 1 (0, 1) has the second half's first part.
TEST_F(PerRank, PutsStridedShardsWhereTheyBelong) {
  const std::vector<uint64_t> ranks = {0, 1, 2, 3};
  WriteRows({9}, {{{2, 2}, {0, 0}, ranks}, {{2, 2}, {0, 1}, ranks}, {{2, 2}, {1, 0}, ranks},
                  {{2, 2}, {1, 1}, ranks}},
            {StridedShard(0, 2), Shard(0)}, {{0, 1, 2}, {5, 6}, {3, 4}, {7, 8}});
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

TEST_F(PerRank, PutsRunsOfOneStridedDimensionWhereTheyBelong) {
  const std::vector<uint64_t> ranks = {0, 1};
  WriteRows({8}, {{{2}, {0}, ranks}, {{2}, {1}, ranks}}, {StridedShard(0, 2)},
            {{0, 1, 4, 5}, {2, 3, 6, 7}});
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(PerRank, ReadsLocalTensorsThatAreViews) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    // The rank's columns of 2x3, column by column, behind something else.
    const std::string bytes = rank == 0 ? Floats({9, 0, 3, 1, 4}) : Floats({9, 2, 5, 9, 9});
    file.Add("w", DTensor({2, 3}, file.View({2, 2 - rank}, {1, 2}, 1, bytes),
                          Mesh({{2}, {rank}, {0, 1}}), {Shard(-1)}));
    Write(rank, file);
  }
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4, 5));
}

// 5 pairs in each row: rank 0 has 3 of them, which are 6 elements.
TEST_F(PerRank, CutsPackedNumbersWhereTorchCutsTheirPairs) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const Shape local = {2, 3 - rank};
    file.Add("w", DTensor({2, 5}, file.Packed(local, std::string(local[0] * local[1], 'x')),
                          Mesh({{2}, {rank}, {0, 1}}), {Shard(1)}));
    Write(rank, file);
  }
  ASSERT_OK(Read());
  const TensorEntry& tensor = *index_.Find("w");
  EXPECT_EQ(tensor.dtype, Dtype::kF4);
  EXPECT_EQ(tensor.shape, (Shape{2, 10}));
  ASSERT_THAT(tensor.pieces, SizeIs(2));
  EXPECT_EQ(tensor.pieces[0].box, (Box{{0, 0}, {2, 6}}));
  EXPECT_EQ(tensor.pieces[1].box, (Box{{0, 6}, {2, 4}}));
  EXPECT_EQ(tensor.pieces[1].bytes, 4u);
}

TEST_F(PerRank, ReadsMeshesOfTorchBefore2_9) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const std::string ranks = file.Tensor({2}, std::string(8, '\0'), "Int");
    file.Add("w", DTensor({2}, file.Tensor({1}, Floats({static_cast<float>(rank + 1)})),
                          Mesh({{}, {rank}, {}, ranks}), {Shard(0)}));
    Write(rank, file);
  }
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(1, 2));
}

TEST_F(PerRank, ReadsShardedTensors) {
  const std::vector<ShardPlace> all = {{{0, 0}, {2, 2}, 0}, {{2, 0}, {1, 2}, 1}};
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const std::string local = file.Tensor(all[rank].sizes, rank == 0 ? Floats({0, 1, 2, 3})
                                                                     : Floats({4, 5}));
    file.Add("w", ShardedTensor({3, 2}, all, {{rank, local}}));
    Write(rank, file);
  }
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(PerRank, ListsAllRanksThatAreMissing) {
  RankFile file;
  file.Add("w", DTensor({4}, file.Tensor({1}, Floats({1})), Mesh({{4}, {2}, {0, 1, 2, 3}}),
                        {Shard(0)}));
  Write(2, file);
  const auto by_gap = Read();
  EXPECT_THAT(by_gap, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(by_gap, Says("it lacks \"pytorch_model_fsdp_0_rank0.bin\", "
                           "\"pytorch_model_fsdp_0_rank1.bin\"; "));
  Write(0, file);
  Write(1, file);
  EXPECT_THAT(Read(), Says("it lacks \"pytorch_model_fsdp_0_rank3.bin\"; "));
}

TEST_F(PerRank, KnowsFromNamesHowManyRanksThereAre) {
  Write(1, RankFile(), "model_world_size_3_", ".pt");
  EXPECT_THAT(Read(), Says("it lacks \"model_world_size_3_rank0.pt\", "
                           "\"model_world_size_3_rank2.pt\"; "));
}

TEST_F(PerRank, RefusesShardsThatLeaveHoles) {
  const std::vector<ShardPlace> all = {{{0}, {2}, 0}, {{3}, {2}, 1}};
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    file.Add("w", ShardedTensor({5}, all, {{rank, file.Tensor({2}, Floats({1, 2}))}}));
    Write(rank, file);
  }
  EXPECT_THAT(Read(), Says("1 of its 5 elements are in no chunk"));
}

TEST_F(PerRank, RefusesALocalTensorThatItsPlacementsDoNotGive) {
  WriteRows({4}, {{{2}, {0}, {0, 1}}, {{2}, {1}, {0, 1}}}, {Shard(0)}, {{1, 2}, {3}});
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(read, Says("its local tensor is (1), and its placements give (2)"));
}

TEST_F(PerRank, RefusesWhatIsNoPartOfATensor) {
  WriteRows({2}, {{{1}, {0}, {0}}}, {pickles::PlacementAs("Partial", {{Text("x"), Text("sum")}})},
            {{1, 2}});
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
  EXPECT_THAT(read, Says("placement_types.Partial"));
}

TEST_F(PerRank, RefusesMeshesThatAreNone) {
  const std::vector<std::pair<MeshOfRank, std::string>> cases = {
      {{{0}, {0}, {0}}, "its mesh has a shape of (0)"},
      {{{1u << 20, 1u << 20}, {0, 0}, {0}}, "its mesh has a shape of (1048576, 1048576)"},
      {{{2}, {2}, {0}}, "its rank has no place in its mesh"},
      {{{1, 1}, {0, 0}, {0}}, "another number of dimensions than its placements"}};
  for (const auto& [mesh, says] : cases) {
    WriteRows({2}, {mesh}, {Shard(0)}, {{1, 2}});
    EXPECT_THAT(Read(), Says(says));
  }
}

TEST_F(PerRank, TakesTensorsThatAllRanksHaveFromTheFirst) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    file.Add("buffer", file.Tensor({2}, rank == 0 ? Floats({1, 2}) : Floats({3, 4})));
    file.Add("w", DTensor({2}, file.Tensor({1}, Floats({5})), Mesh({{2}, {rank}, {0, 1}}),
                          {Shard(0)}));
    Write(rank, file);
  }
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("buffer"), ElementsAre(1, 2));
  EXPECT_THAT(opened.remarks, ElementsAre(HasSubstr("may differ")));
}

// Meshes (0) and (1) each have all of "w" and "b".
TEST_F(PerRank, RefusesStagesThatUseTheSameNames) {
  const auto write = [this](uint64_t rank, const std::vector<float>& numbers) {
    RankFile file;
    file.Add("w", DTensor({2}, file.Tensor({2}, Floats(numbers)), Mesh({{1}, {0}, {rank}}),
                          {Shard(0)}));
    Write(rank, file);
  };
  write(0, {1, 2});
  write(1, {1, 2});
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(1, 2));
  EXPECT_THAT(opened.remarks, IsEmpty());
  write(1, {1, 3});
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(read, Says("ranks 0 and ranks 1 each have all of tensor \"w\", with other values"));
}

// Ranks (0, 1) and (2, 3) of one mesh (pp, tp) each cut "w" along tp.
TEST_F(PerRank, KnowsTheStagesOfASlicedMesh) {
  for (uint64_t rank = 0; rank < 4; ++rank) {
    RankFile file;
    MeshOfRank mesh = {{2}, {rank % 2}, {0, 1, 2, 3}};
    mesh.own = rank;
    file.Add("w", DTensor({2}, file.Tensor({1}, Floats({static_cast<float>(rank)})), Mesh(mesh),
                          {Shard(0)}));
    Write(rank, file);
  }
  EXPECT_THAT(Read(), Says("ranks 0, 1 and ranks 2, 3 each have all of tensor \"w\""));
}

TEST_F(PerRank, RemarksOnReplicasThatDiffer) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const float number = static_cast<float>(rank);
    const std::string mesh = Mesh({{2}, {rank}, {0, 1}});
    file.Add("same", DTensor({1}, file.Tensor({1}, Floats({7})), mesh, {Replicate()}));
    file.Add("w", DTensor({1}, file.Tensor({1}, Floats({number})), mesh, {Replicate()}));
    Write(rank, file);
  }
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("w"), ElementsAre(0));
  EXPECT_THAT(opened.remarks, ElementsAre(testing::EndsWith("first file that has them: \"w\"")));
}

// 64 x 64 boxes of one number by each of few names.
TEST_F(PerRank, RefusesMoreBoxesThanFilesOfTheirSizeHave) {
  RankFile file;
  const std::string shard = DTensor({128, 128}, file.View({64, 64}, {0, 0}, 0, Floats({1})),
                                    Mesh({{2, 2}, {0, 0}, {0, 1, 2, 3}}),
                                    {StridedShard(0, 64), StridedShard(1, 64)});
  for (int i = 0; i < 8; ++i) file.Add(std::to_string(i), shard);
  Write(0, file);
  const auto read = Read();
  EXPECT_THAT(read, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
  EXPECT_THAT(read, Says("boxes, which no files of their size do"));
}

TEST_F(PerRank, KnowsTheSignsOfViewsThatAreNegated) {
  const auto write = [this](bool last_is_negated) {
    for (uint64_t rank = 0; rank < 2; ++rank) {
      RankFile file;
      file.Add("plain", file.Negated({2}, Floats({1, 2})));
      const bool is_negated = rank == 0 || last_is_negated;
      const std::string local = is_negated ? file.Negated({1}, Floats({5}))
                                           : file.Tensor({1}, Floats({5}));
      file.Add("w", DTensor({2}, local, Mesh({{2}, {rank}, {0, 1}}), {Shard(0)}));
      Write(rank, file);
    }
  };
  write(true);
  ASSERT_OK(Read());
  EXPECT_TRUE(index_.Find("plain")->negates_real);
  EXPECT_TRUE(index_.Find("w")->negates_real);
  write(false);
  EXPECT_THAT(Read(), Says("tensor \"w\": some ranks have it with the other sign"));
}

TEST_F(PerRank, ReadsPackedShardsOfFlatParametersAsTheyAre) {
  RankFile file;
  const std::string flat = file.Packed({4}, "abcd");
  file.Add("a", flat);
  file.Add("_flat_param", ShardedTensor({8}, {{{0}, {8}, 0}}, {{0, flat}}));
  Write(0, file);
  ASSERT_OK(Read());
  EXPECT_EQ(index_.Find("a")->dtype, Dtype::kF4);
}

TEST_F(PerRank, RefusesPlainTensorsThatDifferByRank) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    file.Add("odd", file.Tensor({1 + rank}, std::string(4 + 4 * rank, 'x')));
    file.Add("w", DTensor({2}, file.Tensor({1}, Floats({5})), Mesh({{2}, {rank}, {0, 1}}),
                          {Shard(0)}));
    Write(rank, file);
  }
  EXPECT_THAT(Read(), Says("tensor \"odd\": it is no part of a larger one, and differs by rank"));
}

TEST_F(PerRank, RefusesFilesThatDoNotSayHowTheyBelongTogether) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    file.Add("w", file.Tensor({2}, Floats({1, 2})));
    Write(rank, file, "ckpt_");
  }
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
}

TEST_F(PerRank, KeepsFlatParametersFlat) {
  const std::vector<ShardPlace> all = {{{0}, {4}, 0}, {{4}, {4}, 1}};
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const std::string flat =
        file.Tensor({4}, rank == 0 ? Floats({0, 1, 2, 42}) : Floats({10, 11, 20, 21}));
    // As use_orig_params has them: views of the flat parameter, without their shapes.
    const Shape one = {1};
    file.Add("a", rank == 0 ? file.Again({3}, one, 0) : file.Again({0}, one, 0));
    file.Add("b", rank == 0 ? file.Again({0}, one, 4) : file.Again({2}, one, 0));
    file.Add("_flat_param", ShardedTensor({8}, all, {{rank, flat}}));
    Write(rank, file);
  }
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, Read());
  EXPECT_THAT(NumbersOf("_flat_param"), ElementsAre(0, 1, 2, 42, 10, 11, 20, 21));
  EXPECT_THAT(NumbersOf("a"), ElementsAre(0, 1, 2));
  EXPECT_THAT(NumbersOf("b"), ElementsAre(10, 11));
  EXPECT_THAT(opened.remarks, ElementsAre(HasSubstr("1 flat parameters of FSDP1")));
}

TEST_F(PerRank, JoinsRunsOfAParameterOverRanks) {
  const std::vector<ShardPlace> all = {{{0}, {3}, 0}, {{3}, {3}, 1}};
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    const std::string flat =
        file.Tensor({3}, rank == 0 ? Floats({7, 1, 2}) : Floats({3, 4, 42}));
    file.Add("a", rank == 0 ? file.Again({2}, {1}, 1) : file.Again({2}, {1}, 0));
    file.Add("_flat_param", ShardedTensor({6}, all, {{rank, flat}}));
    Write(rank, file);
  }
  ASSERT_OK(Read());
  EXPECT_THAT(NumbersOf("a"), ElementsAre(1, 2, 3, 4));
}

TEST_F(PerRank, HasAnOptimizersStateAsAPart) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    const std::string mesh = Mesh({{2}, {rank}, {0, 1}});
    RankFile model;
    model.Add("w", DTensor({2}, model.Tensor({1}, Floats({5})), mesh, {Shard(0)}));
    Write(rank, model);
    RankFile optimizer;
    const std::string step = optimizer.Tensor({}, Floats({3}));
    const std::string average = optimizer.Tensor({1}, Floats({static_cast<float>(rank)}));
    optimizer.Add("state", Dict({{Text("w"), Dict({{Text("step"), step},
                                                   {Text("exp_avg"),
                                                    DTensor({2}, average, mesh, {Shard(0)})}})}}));
    optimizer.Add("lr", pickles::Float("0.5"));
    Write(rank, optimizer, "optimizer_0_");
  }
  ASSERT_OK(Read());
  EXPECT_THAT(index_.tensors, SizeIs(1));
  ASSERT_OK(Read("optimizer"));
  EXPECT_THAT(NumbersOf("state.w.exp_avg"), ElementsAre(0, 1));
  EXPECT_THAT(NumbersOf("state.w.step"), ElementsAre(3));
  EXPECT_EQ(index_.tensors[0].kind, EntryKind::kOptimizer);
  EXPECT_EQ(index_.groups[index_.tensors[0].group], "optimizer");
  EXPECT_THAT(index_.values, ElementsAre(Pair("lr", "0.5")));
}

TEST_F(PerRank, NamesWhatEachRankHasForItself) {
  for (uint64_t rank = 0; rank < 2; ++rank) {
    RankFile file;
    file.Add("rng", file.Tensor({1}, Floats({static_cast<float>(rank)})));
    Write(rank, file, "extra_state_world_size_2_", ".pt");
    Write(rank, file, "model_world_size_2_", ".pt");
  }
  ASSERT_OK(Read("extra"));
  EXPECT_THAT(NumbersOf("rank_0.rng"), ElementsAre(0));
  EXPECT_THAT(NumbersOf("rank_1.rng"), ElementsAre(1));
}

TEST_F(PerRank, AsksWhichOfSeveralSavesIsMeant) {
  const std::vector<uint64_t> ranks = {0};
  WriteRows({1}, {{{1}, {0}, ranks}}, {Shard(0)}, {{1}});
  RankFile other;
  other.Add("v", DTensor({1}, other.Tensor({1}, Floats({2})), Mesh({{1}, {0}, ranks}), {Shard(0)}));
  Write(0, other, "pytorch_model_fsdp_1_");
  EXPECT_THAT(Read(), Says("files of ranks of 2 saves"));
  ASSERT_OK(Read("pytorch_model_fsdp_1"));
  EXPECT_THAT(NumbersOf("v"), ElementsAre(2));
}

TEST_F(PerRank, LeavesFoldersToOthersThatHaveUsualWeights) {
  RankFile file;
  file.Add("w", file.Tensor({1}, Floats({1})));
  Write(0, file);
  storage_.Write("/p/model.safetensors", "");
  EXPECT_FALSE(format_.Recognise(storage_, *ListSource(storage_, "/p")));
  storage_.Write("/q/weights_rank0.bin", "no file of torch");
  EXPECT_FALSE(format_.Recognise(storage_, *ListSource(storage_, "/q")));
}

TEST_F(PerRank, LeavesOutFilesOfMoreRanksThanTheSaveHad) {
  RankFile file;
  file.Add("w", DTensor({1}, file.Tensor({1}, Floats({1})), Mesh({{1}, {0}, {0}}), {Shard(0)}));
  Write(0, file, "model_world_size_1_", ".pt");
  Write(1, RankFile(), "model_world_size_1_", ".pt");
  ASSERT_OK(Read());
  EXPECT_THAT(index_.files, SizeIs(1));
}

}  // namespace
}  // namespace ckptd

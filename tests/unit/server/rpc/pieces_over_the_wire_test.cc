// A source in pieces with strides, from the leader's index to the slabs of ranks that know it by
// the wire alone.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/plan/group_plan.h"
#include "server/rpc/convert.h"
#include "server/rpc/inspect_page.h"
#include "server/transfer/frame_receiver.h"
#include "server/transfer/transfer.h"
#include "tests/testing/core_values.h"
#include "tests/testing/frame_sinks.h"
#include "tests/testing/pieces_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr size_t kRanks = 3;

std::shared_ptr<const CheckpointIndex> OverTheWire(const CheckpointIndex& index) {
  PrepareCall call = CallOf("checkpoints/a", RuleRequest("fsdp:3"));
  call.request.source = index.source;
  call.index = std::make_shared<const CheckpointIndex>(index);
  v1::PrepareRequest received;
  EXPECT_TRUE(received.ParseFromString(ToProto(call).SerializeAsString()));
  const auto back = FromProto(received);
  EXPECT_THAT(back, IsOk());
  return back.ok() ? back->index : std::make_shared<const CheckpointIndex>();
}

struct Loaded {
  std::vector<RankPlan> plans;
  std::vector<std::vector<std::byte>> slabs;
  std::vector<std::vector<uint64_t>> digests;

  std::vector<std::byte> Tensor(size_t rank, size_t number) const {
    const PlannedTensor& tensor = plans[rank].tensors[number];
    const auto begin = slabs[rank].begin() + static_cast<ptrdiff_t>(tensor.offset);
    return {begin, begin + static_cast<ptrdiff_t>(tensor.bytes)};
  }
};

class PiecesOverTheWire : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { source_.Write(folder_.path()); }

  // The last rank is elsewhere, if `sent`: its bytes come as frames.
  Loaded Load(std::shared_ptr<const CheckpointIndex> index, const char* rules, bool sent) {
    const DtypePolicy policy = {Dtype::kBF16, {"t00*"}};
    Loaded loaded;
    const LayoutRules layout = LayoutRules::Parse(rules).value();
    std::vector<uint32_t> numbers(kRanks);
    std::iota(numbers.begin(), numbers.end(), 0u);
    const auto cohorts = layout.ForRanks(*index, numbers).value();
    auto group = GroupPlan::Make(index, cohorts, policy);
    EXPECT_THAT(group, IsOk());
    std::vector<const PlannedRank*> ranks;
    std::vector<TransferTarget> targets(kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      loaded.plans.push_back(PlanRank(*index, layout.ForRank(*index, rank).value(), policy).value());
      loaded.slabs.emplace_back(loaded.plans.back().slab_bytes, std::byte{0xee});
      ranks.push_back(group->Find(rank));
    }
    for (size_t rank = 0; rank < kRanks; ++rank) targets[rank].slab.segments = {loaded.slabs[rank]};
    auto receiver = FrameReceiver::Make(OverTheWire(*index), loaded.plans.back(),
                                        targets.back().slab, /*digests=*/true);
    EXPECT_THAT(receiver, IsOk());
    DirectSink sink(**receiver);
    if (sent) targets.back().sink = &sink;
    TransferOptions options;
    options.window_copies = 7;
    TransferProgress progress(kRanks);
    auto result = RunTransfer(*group, ranks, targets, options, progress);
    EXPECT_THAT(result, IsOk());
    if (!result.ok()) return loaded;
    loaded.digests = std::move(result->digests);
    if (sent) loaded.digests.back() = (*receiver)->Digests().value();
    return loaded;
  }

  PiecesSource source_{GetParam(), 30, GetParam() % 5 == 0 ? 11u : 6u};
  TempFolder folder_;
};

TEST_P(PiecesOverTheWire, ArriveAsTheyAre) {
  const auto index = OverTheWire(source_.index);
  EXPECT_EQ(index->files, source_.index.files);
  ASSERT_EQ(index->tensors.size(), source_.index.tensors.size());
  for (size_t i = 0; i < index->tensors.size(); ++i) {
    const TensorEntry& have = index->tensors[i];
    const TensorEntry& want = source_.index.tensors[i];
    EXPECT_EQ(have.name, want.name);
    EXPECT_EQ(have.dtype, want.dtype);
    EXPECT_EQ(have.kind, want.kind);
    EXPECT_EQ(index->groups[have.group], source_.index.groups[want.group]);
    EXPECT_EQ(have.shape, want.shape);
    EXPECT_EQ(have.big_endian, want.big_endian);
    EXPECT_EQ(have.negates_real, want.negates_real);
    EXPECT_EQ(have.negates_imaginary, want.negates_imaginary);
    ASSERT_EQ(have.pieces.size(), want.pieces.size());
    for (size_t p = 0; p < have.pieces.size(); ++p) {
      EXPECT_EQ(have.pieces[p].file, want.pieces[p].file);
      EXPECT_EQ(have.pieces[p].offset, want.pieces[p].offset);
      EXPECT_EQ(have.pieces[p].bytes, want.pieces[p].bytes);
      EXPECT_EQ(have.pieces[p].box, want.pieces[p].box);
      EXPECT_EQ(have.pieces[p].strides, want.pieces[p].strides);
    }
  }
}

TEST_P(PiecesOverTheWire, FillTheSlabsAsOneRowMajorPieceDoes) {
  const auto plain = std::make_shared<const CheckpointIndex>(source_.plain);
  const auto index = OverTheWire(source_.index);
  for (const char* rules : {"fsdp:3", "replicate:3"}) {
    for (const bool sent : {false, true}) {
      const Loaded want = Load(plain, rules, false);
      const Loaded have = Load(index, rules, sent);
      ASSERT_EQ(have.digests.size(), kRanks);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        ASSERT_EQ(have.plans[rank].tensors.size(), want.plans[rank].tensors.size());
        for (size_t i = 0; i < have.plans[rank].tensors.size(); ++i) {
          const std::string& name = have.plans[rank].tensors[i].name;
          EXPECT_EQ(have.Tensor(rank, i), want.Tensor(rank, i)) << name << " of rank " << rank;
          EXPECT_EQ(have.digests[rank][i], TensorDigest(want.Tensor(rank, i))) << name;
        }
      }
    }
  }
}

TEST_P(PiecesOverTheWire, AreAllCountedByInspect) {
  ASSERT_OK_AND_ASSIGN(const auto page, InspectPage(source_.index, "", 0));
  uint64_t total = 0;
  for (int i = 0; i < page.index().tensors().names_size(); ++i) {
    EXPECT_EQ(page.index().tensors().bytes(i), source_.BytesOf(page.index().tensors().names(i)).size());
    total += page.index().tensors().bytes(i);
  }
  EXPECT_EQ(page.tensor_bytes(), total);
}

INSTANTIATE_TEST_SUITE_P(Random, PiecesOverTheWire, testing::Range<uint64_t>(1, 31));

}  // namespace
}  // namespace ckptd

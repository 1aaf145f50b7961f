#include "server/transfer/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/transfer/world.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Case {
  uint64_t seed;
  unsigned threads;
  bool map;
  uint64_t segment_bytes;
};

class Transfer : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    FillAtRandom(world_, GetParam().seed, 5 * kMiB);
    world_.Finish(GetParam().segment_bytes);
    options_.threads = GetParam().threads;
    options_.way = GetParam().map ? ReadWay::kAuto : ReadWay::kBuffer;
  }

  World world_{2, 3};
  TransferProgress progress_{3};
  TransferOptions options_;
};

TEST_P(Transfer, PutsEveryTensorOfEveryRankInItsPlace) {
  ASSERT_OK(RunTransfer(world_.index, world_.targets, options_, progress_));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t t = 0; t < world_.expected[r].size(); ++t) {
      ASSERT_TRUE(world_.Tensor(r, t) == world_.expected[r][t]) << "rank " << r << " tensor " << t;
    }
  }
}

TEST_P(Transfer, PlacesTheSameBytesWithoutDigests) {
  options_.digests = false;
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(world_.index, world_.targets, options_, progress_));
  ASSERT_TRUE(result.digests.empty());
  for (size_t r = 0; r < 3; ++r) {
    for (size_t t = 0; t < world_.expected[r].size(); ++t) {
      ASSERT_TRUE(world_.Tensor(r, t) == world_.expected[r][t]) << "rank " << r << " tensor " << t;
    }
  }
}

TEST_P(Transfer, ReportsTheDigestOfEachTensorsLocalBytes) {
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(world_.index, world_.targets, options_, progress_));
  for (size_t r = 0; r < 3; ++r) {
    ASSERT_EQ(result.digests[r].size(), world_.expected[r].size());
    for (size_t t = 0; t < world_.expected[r].size(); ++t) {
      ASSERT_EQ(result.digests[r][t], TensorDigest(world_.expected[r][t])) << r << " " << t;
    }
  }
}

TEST_P(Transfer, ReadsEachNeededByteOnce) {
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(world_.index, world_.targets, options_, progress_));
  EXPECT_EQ(result.storage_bytes, world_.NeededBytes());
}

TEST_P(Transfer, CountsWhatItDid) {
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(world_.index, world_.targets, options_, progress_));
  EXPECT_EQ(progress_.storage_bytes.load(), result.storage_bytes);
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(progress_.done[r].load(), world_.plans[r].tensor_bytes);
  }
}

TEST_P(Transfer, TogetherWithZeroPaddingLeavesNoOldByte) {
  ASSERT_OK(RunTransfer(world_.index, world_.targets, options_, progress_));
  for (size_t r = 0; r < 3; ++r) {
    ZeroPadding(world_.plans[r], world_.targets[r].slab);
    std::vector<std::byte> expected(world_.plans[r].slab_bytes);
    for (size_t t = 0; t < world_.expected[r].size(); ++t) {
      std::copy(world_.expected[r][t].begin(), world_.expected[r][t].end(),
                expected.begin() + static_cast<ptrdiff_t>(world_.plans[r].tensors[t].offset));
    }
    ASSERT_TRUE(world_.Slab(r) == expected) << "rank " << r;
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const auto threads = static_cast<unsigned>(1 + seed % 4);
    const uint64_t segment = seed % 2 == 0 ? 64 << 10 : (64 << 10) * (1 + seed * seed * 7);
    cases.push_back({seed, threads, seed % 3 != 0, segment});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(RandomWorlds, Transfer, ::testing::ValuesIn(Cases()));

// One tensor of 16 MiB, in rows, for two ranks.
class BigFile : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const uint64_t offset = world_.AddBytes(0, 16 * kMiB, 1);
    const uint64_t shape[3] = {1, 4096, 4096};
    for (size_t rank = 0; rank < 2; ++rank) {
      world_.AddTensor(rank, 0, offset, Dtype::kU8, Dtype::kU8, shape,
                       {{0, rank * 2048, 0}, {1, 2048, 4096}});
    }
    world_.Finish(64 * kMiB);
    options_.way = GetParam() ? ReadWay::kAuto : ReadWay::kBuffer;
    options_.threads = 2;
  }

  World world_{1, 2};
  TransferProgress progress_{2};
  TransferOptions options_;
};

TEST_P(BigFile, CutDuringTheTransferIsAChangedSource) {
  int polls = 0;
  options_.interrupted = [&] {
    if (++polls == 4) std::filesystem::resize_file(world_.index.files[0].path, 2 * kMiB);
    return absl::OkStatus();
  };
  const auto result = RunTransfer(world_.index, world_.targets, options_, progress_);
  ASSERT_EQ(ReasonOf(result.status()), reason::kSourceChanged) << result.status().ToString();
}

TEST_P(BigFile, AnErrorNamesTheFileAndTheTensor) {
  std::filesystem::resize_file(world_.index.files[0].path, 2 * kMiB);
  const auto result = RunTransfer(world_.index, world_.targets, options_, progress_);
  const Facts facts = FactsOf(result.status());
  EXPECT_EQ(facts.count("file"), 1U);
  EXPECT_EQ(facts.count("tensor"), 1U);
}

TEST_P(BigFile, StopsWithTheStatusOfWhoeverInterruptsIt) {
  int polls = 0;
  options_.interrupted = [&polls]() -> absl::Status {
    return ++polls < 3 ? absl::OkStatus() : absl::CancelledError("enough");
  };
  const auto result = RunTransfer(world_.index, world_.targets, options_, progress_);
  EXPECT_EQ(result.status(), absl::CancelledError("enough"));
}

TEST_P(BigFile, StopsAllThreadsSoonAfterOneOfThemFailed) {
  int polls = 0;
  options_.interrupted = [&polls]() -> absl::Status {
    return ++polls == 3 ? absl::CancelledError("enough") : absl::OkStatus();
  };
  ASSERT_FALSE(RunTransfer(world_.index, world_.targets, options_, progress_).ok());
  EXPECT_LE(progress_.storage_bytes.load(), 4 * kMiB);
}

TEST_P(BigFile, ReplacedByAnotherFileIsAChangedSource) {
  world_.index.files[0].inode = 1;
  EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
              FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST_P(BigFile, GoneIsNotFound) {
  std::filesystem::remove(world_.index.files[0].path);
  EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
              FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
}

TEST_P(BigFile, WithAMissingCopyIsRefused) {
  world_.plans[1].ops.clear();
  for (const bool digests : {true, false}) {
    options_.digests = digests;
    EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
                FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
  }
}

TEST_P(BigFile, WithACopyTooManyIsRefused) {
  world_.plans[1].ops.push_back(world_.plans[1].ops[0]);
  EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST_P(BigFile, WithACopyPastItsTensorIsRefused) {
  world_.plans[1].ops[0].slab_offset += 1;
  EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST_P(BigFile, WithACopyPastItsEndIsRefused) {
  world_.plans[1].ops[0].file_offset += 1;
  EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
              FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
}

TEST_P(BigFile, WithASlabTooSmallIsRefused) {
  auto& segments = world_.targets[1].slab.segments;
  segments[0] = segments[0].first(segments[0].size() - kSlabAlignment - 1);
  EXPECT_THAT(RunTransfer(world_.index, world_.targets, options_, progress_),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

INSTANTIATE_TEST_SUITE_P(ReadThrough, BigFile, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Mapping" : "Buffer"; });

TEST(DigestInSlab, EqualsTheDigestOfTheTensorAcrossSegments) {
  World world(1, 1);
  const uint64_t offset = world.AddBytes(0, 2 * kMiB + 77, 1);
  const uint64_t shape[3] = {1, 1, 2 * kMiB + 77};
  world.AddTensor(0, 0, offset, Dtype::kU8, Dtype::kU8, shape, {{0, 0, 0}, {1, 1, shape[2]}});
  world.Finish(300000);
  TransferProgress progress(1);
  ASSERT_OK(RunTransfer(world.index, world.targets, {}, progress));
  EXPECT_EQ(DigestInSlab(world.targets[0].slab, 0, shape[2]), TensorDigest(world.expected[0][0]));
}

TEST(TransferOfNothing, SucceedsWithTheDigestOfAnEmptyTensor) {
  World world(0, 1);
  world.plans[0].tensors.push_back({});
  world.Finish(4096);
  TransferProgress progress(1);
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(world.index, world.targets, {}, progress));
  EXPECT_EQ(result.digests[0], std::vector<uint64_t>{TensorDigest({})});
}

}  // namespace
}  // namespace ckptd

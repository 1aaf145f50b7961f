// Impossible plans, and small parts of a transfer. The rest is in tests/contract/transfer.
#include "server/transfer/transfer.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "server/transfer/direct_reads.h"
#include "tests/testing/comms_in_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = 1 << 20;

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
    options_.io_mode = GetParam() ? IoMode::kAuto : IoMode::kBuffer;
    options_.threads = 2;
  }

  World world_{1, 2};
  TransferProgress progress_{2};
  TransferOptions options_;
};

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

// Whether this process has the file open.
bool IsOpen(const std::string& path) {
  std::error_code ended;  // a descriptor that only listed the folder
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    if (std::filesystem::read_symlink(fd.path(), ended) == path) return true;
  }
  return false;
}

// An item of 23 MB, more than direct reads may have in flight, and one of another file.
TEST(LongDirectItem, HasTheNextOneReadAheadBeforeItIsDone) {
  World world(2, 1);
  const uint64_t wide = world.AddBytes(0, 1300 * 18'000, 1);
  world.AddTensor(0, 0, wide, Dtype::kU8, Dtype::kU8, {1, 1300, 18'000}, {{}, {1, 1300, 3000}});
  const uint64_t next = world.AddBytes(1, 5000, 2);
  world.AddTensor(0, 1, next, Dtype::kU8, Dtype::kU8, {1, 1, 5000}, {{}, {1, 1, 5000}});
  world.Finish(64 * kMiB);
  const UniqueFd direct(::open(world.index.files[0].path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!direct.valid() || DirectReads::Create(1, 4096) == nullptr) {
    GTEST_SKIP() << "no O_DIRECT, or no io_uring";
  }
  TransferProgress progress(1);
  TransferOptions options;
  options.threads = 1;
  options.io_mode = IoMode::kDirect;
  bool ahead = false;
  options.interrupted = [&] {
    const bool first_is_done = progress.storage_bytes > 0;
    ahead = ahead || (!first_is_done && IsOpen(world.index.files[1].path));
    return absl::OkStatus();
  };
  ASSERT_OK(RunTransfer(world.index, world.targets, options, progress));
  EXPECT_TRUE(ahead);
  EXPECT_TRUE(world.Tensor(0, 0) == world.expected[0][0]);
  EXPECT_TRUE(world.Tensor(0, 1) == world.expected[0][1]);
}

TEST(DigestInSlab, EqualsTheDigestOfTheTensorAcrossSegments) {
  World world(1, 1);
  const uint64_t offset = world.AddBytes(0, 2 * kMiB + 77, 1);
  const uint64_t shape[3] = {1, 1, 2 * kMiB + 77};
  world.AddTensor(0, 0, offset, Dtype::kU8, Dtype::kU8, shape, {{0, 0, 0}, {1, 1, shape[2]}});
  world.Finish(300000);
  TransferProgress progress(1);
  ASSERT_OK(RunTransfer(world.index, world.targets, {}, progress));
  EXPECT_EQ(DigestInSlab(world.targets[0].slab, 0, shape[2]).value(), TensorDigest(world.expected[0][0]));
}

TEST(DirtyPadding, NamesTheTensorBehindWhichABitIsSet) {
  World world(1, 1);
  const uint64_t offset = world.AddBytes(0, 3000, 1);
  for (const uint64_t bytes : std::initializer_list<uint64_t>{700, 1, 0, 2000}) {
    world.AddTensor(0, 0, offset, Dtype::kU8, Dtype::kU8, {1, 1, 3000}, {{}, {1, 1, bytes}});
  }
  world.Finish(1000);
  const RankPlan& plan = world.plans[0];
  const SlabView& slab = world.targets[0].slab;
  EXPECT_EQ(DirtyPadding(plan, slab).value(), (std::set<uint32_t>{0, 1, 3}));
  ASSERT_OK(ZeroPadding(plan, slab));
  EXPECT_TRUE(DirtyPadding(plan, slab).value().empty());
  slab.segments[1][plan.tensors[1].offset + 1 - 1000] ^= std::byte{1};
  EXPECT_EQ(DirtyPadding(plan, slab).value(), std::set<uint32_t>{1});
}

// Zeroes the padding of a slab of 64 MiB that has `bytes` of a tensor at the start of each 512.
std::shared_ptr<BytesInProcess> ClearedBetween(size_t tensors, uint64_t bytes, RankPlan& plan) {
  for (uint32_t i = 0; i < tensors; ++i) {
    PlannedTensor& tensor = plan.tensors.emplace_back();
    tensor.offset = i * uint64_t{512};
    tensor.bytes = bytes;
  }
  auto memory = std::make_shared<BytesInProcess>(64 * kMiB, std::byte{1});
  EXPECT_OK(ZeroPadding(plan, {{}, memory}));
  EXPECT_TRUE(DirtyPadding(plan, {{}, memory}).value().empty());
  return memory;
}

TEST(ZeroPadding, OfStagedMemoryLeavesTensorsAloneWhereGapsAreFew) {
  RankPlan plan;
  const auto memory = ClearedBetween(3, 500, plan);
  EXPECT_EQ(memory->cleared, 3);
  EXPECT_EQ(std::ranges::count(memory->content(), std::byte{1}), 3 * 500);
}

TEST(ZeroPadding, OfStagedMemoryIsOneCallWhereGapsAreMany) {
  RankPlan plan;
  const auto memory = ClearedBetween(1000, 500, plan);
  EXPECT_EQ(memory->cleared, 1);
  EXPECT_EQ(std::ranges::count(memory->content(), std::byte{0}), 64 * kMiB);
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

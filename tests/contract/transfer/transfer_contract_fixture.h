// The fixture of the transfer contract. A form is a way in which a reader's bytes get into the
// memory of another rank.
#ifndef CKPTD_TESTS_CONTRACT_TRANSFER_TRANSFER_CONTRACT_FIXTURE_H_
#define CKPTD_TESTS_CONTRACT_TRANSFER_TRANSFER_CONTRACT_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/transfer/transfer.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {

// The ranks of a world as a form reaches them. Made when the world is finished.
class ReachedRanks {
 public:
  virtual ~ReachedRanks() = default;
  // How the reader reaches a rank, and the memory as its owner sees it.
  virtual TransferTarget Target(size_t rank) = 0;
  virtual SlabView Owned(size_t rank) = 0;
  // The rank's digests after a successful transfer, from the side that computed them.
  virtual absl::StatusOr<std::vector<uint64_t>> Digests(size_t rank,
                                                        const TransferResult& result) = 0;
};

struct TransferForm {
  std::string name;
  std::function<std::unique_ptr<ReachedRanks>(World& world, bool digests)> reach;
};

struct TransferCase {
  TransferForm form;
  IoMode io_mode = IoMode::kAuto;
  uint64_t seed = 1;  // for the random world, and for its threads and segments

  unsigned threads() const { return static_cast<unsigned>(1 + seed % 4); }
};

inline std::string TransferCaseName(const testing::TestParamInfo<TransferCase>& info) {
  const char* const ways[] = {"Auto", "Mapping", "Buffer", "Direct"};
  return info.param.form.name + ways[static_cast<size_t>(info.param.io_mode)] +
         std::to_string(info.param.seed);
}

constexpr IoMode kWays[] = {IoMode::kMap, IoMode::kBuffer, IoMode::kDirect};

// `seeds` worlds for each form, each world read in another mode.
inline std::vector<TransferCase> Worlds(const std::vector<TransferForm>& forms, uint64_t seeds) {
  std::vector<TransferCase> cases;
  for (const TransferForm& form : forms) {
    for (uint64_t seed = 1; seed <= seeds; ++seed) cases.push_back({form, kWays[seed % 3], seed});
  }
  return cases;
}

inline std::vector<TransferCase> EveryWayToRead(const std::vector<TransferForm>& forms) {
  std::vector<TransferCase> cases;
  for (const TransferForm& form : forms) {
    for (const IoMode io_mode : kWays) cases.push_back({form, io_mode, 1});
  }
  return cases;
}

class TransferContract : public testing::TestWithParam<TransferCase> {
 protected:
  // Completes the world and connects its ranks.
  void Finish(bool digests = true) {
    world_->Finish((64 << 10) * (1 + GetParam().seed * 7));
    reached_ = GetParam().form.reach(*world_, digests);
    for (size_t rank = 0; rank < world_->plans.size(); ++rank) {
      targets_.push_back(reached_->Target(rank));
    }
    options_.digests = digests;
    options_.threads = GetParam().threads();
    options_.io_mode = GetParam().io_mode;
    progress_ = std::make_unique<TransferProgress>(targets_.size());
  }
  absl::StatusOr<TransferResult> Run() {
    return RunTransfer(world_->index, targets_, options_, *progress_);
  }

  // All memory of a rank; below, one tensor of it.
  std::vector<std::byte> Slab(size_t rank) { return ReadBytes(reached_->Owned(rank)); }
  void ExpectDigests(const TransferResult& result) {
    for (size_t rank = 0; rank < targets_.size(); ++rank) {
      ASSERT_OK_AND_ASSIGN(const std::vector<uint64_t> digests, reached_->Digests(rank, result));
      for (size_t t = 0; t < digests.size(); ++t) {
        ASSERT_EQ(digests[t], TensorDigest(world_->expected[rank][t])) << rank << " " << t;
      }
    }
  }
  void ExpectAllPlaced() {
    for (size_t rank = 0; rank < targets_.size(); ++rank) {
      const std::vector<std::byte> slab = Slab(rank);
      for (size_t t = 0; t < world_->expected[rank].size(); ++t) {
        const PlannedTensor& tensor = world_->plans[rank].tensors[t];
        const std::vector<std::byte>& expected = world_->expected[rank][t];
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                               slab.begin() + static_cast<ptrdiff_t>(tensor.offset)))
            << "rank " << rank << " tensor " << t;
      }
    }
  }

  std::unique_ptr<World> world_;
  std::unique_ptr<ReachedRanks> reached_;
  std::vector<TransferTarget> targets_;
  std::unique_ptr<TransferProgress> progress_;
  TransferOptions options_;
};

// Three ranks with tensors of all kinds: chunked by rows or columns, replicated, boxes, stored in
// two pieces, cast or not.
class AnyTransfer : public TransferContract {
 protected:
  void SetUp() override {
    world_ = std::make_unique<World>(2, 3);
    FillAtRandom(*world_, GetParam().seed, 5 << 20);
  }
};

// Three ranks with narrow columns each: uncast rows of 256 bytes, the same cast to wider
// elements, a replica of another tensor cast to wider elements, and one cast to narrower ones; and
// all but the first again in the other byte order, with one that is not cast.
class NarrowColumns : public TransferContract {
 protected:
  void SetUp() override {
    world_ = std::make_unique<World>(1, 3);
    const uint64_t shape[3] = {1, 4096, 3 * 256};
    const uint64_t plain = world_->AddBytes(0, 4096 * 3 * 256, 1);
    world_->AddBytes(0, 2, 2);  // so that the next bytes are not aligned
    const uint64_t halves = world_->AddBytes(0, 4096 * 3 * 256 * 2, 3);
    const uint64_t floats = world_->AddBytes(0, 4096 * 3 * 256 * 4, 4);
    for (size_t rank = 0; rank < 3; ++rank) {
      const Box3 columns = {{0, 0, rank * 256}, {1, 4096, 256}};
      world_->AddTensor(rank, 0, plain, Dtype::kU8, Dtype::kU8, shape, columns);
      world_->AddTensor(rank, 0, halves, Dtype::kBF16, Dtype::kF32, shape, columns);
      world_->AddTensor(rank, 0, halves, Dtype::kF16, Dtype::kF64, shape, {{}, {1, 4096, 3 * 256}});
      world_->AddTensor(rank, 0, floats, Dtype::kF32, Dtype::kBF16, shape, columns);
    }
    world_->big_endian = true;
    world_->AddBytes(0, 1, 5);
    const uint64_t turned = world_->AddBytes(0, 4096 * 3 * 256 * 4, 6);
    for (size_t rank = 0; rank < 3; ++rank) {
      const Box3 columns = {{0, 0, rank * 256}, {1, 4096, 256}};
      world_->AddTensor(rank, 0, turned, Dtype::kF32, Dtype::kF64, shape, columns);
      world_->AddTensor(rank, 0, turned, Dtype::kF32, Dtype::kBF16, shape, {{}, {1, 4096, 3 * 256}});
      world_->AddTensor(rank, 0, turned, Dtype::kI32, Dtype::kI32, shape, columns);
    }
  }
};

// One tensor of 24 MiB, in rows, for two ranks: long enough to be stopped, even with 16 MiB of
// prefetches.
class LongTransfer : public TransferContract {
 protected:
  void SetUp() override {
    world_ = std::make_unique<World>(1, 2);
    const uint64_t offset = world_->AddBytes(0, 24 << 20, 1);
    const uint64_t shape[3] = {1, 6144, 4096};
    for (size_t rank = 0; rank < 2; ++rank) {
      world_->AddTensor(rank, 0, offset, Dtype::kU8, Dtype::kU8, shape,
                        {{0, rank * 3072, 0}, {1, 3072, 4096}});
    }
    Finish();
  }
  const std::string& file() const { return world_->index.files[0].path; }
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_TRANSFER_TRANSFER_CONTRACT_FIXTURE_H_

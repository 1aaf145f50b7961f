// The calls that a StepUser gets during a transfer in steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/transfer/step_user.h"
#include "server/transfer/transfer.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr size_t kRanks = 6;

// Records its calls, and fails where the test wants it.
class NotingUser final : public StepUser {
 public:
  absl::Status Plan(size_t step, std::span<const RankPlan* const> plans) override {
    MutexLock lock(mutex_);
    EXPECT_EQ(plans.size(), kRanks);
    EXPECT_EQ(step, planned.size()) << "steps are planned in order, each once";
    planned.push_back(step);
    return step == fails_plan ? error : absl::OkStatus();
  }
  absl::Status Enter(size_t step) override {
    MutexLock lock(mutex_);
    EXPECT_LT(step, planned.size()) << "entered before it was planned";
    EXPECT_EQ(filled.count(step), 0u) << "entered after it was filled";
    entered.insert(step);
    return step == fails_enter ? error : absl::OkStatus();
  }
  void Filled(size_t step) override {
    MutexLock lock(mutex_);
    EXPECT_TRUE(filled.insert(step).second) << "filled twice";
  }
  void Stop(const absl::Status& status) override {
    MutexLock lock(mutex_);
    stopped.push_back(status);
  }

  const absl::Status error = absl::AbortedError("as the user said");
  size_t fails_plan = SIZE_MAX;
  size_t fails_enter = SIZE_MAX;
  std::vector<size_t> planned;
  std::set<size_t> entered;
  std::set<size_t> filled;
  std::vector<absl::Status> stopped;

 private:
  Mutex mutex_;
};

class Steps : public testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override {
    RandomSource source(3, 80);
    WriteFiles(folder_.path(), source.index);
    index_ = std::make_shared<const CheckpointIndex>(std::move(source.index));
    ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse("fsdp:6"));
    std::vector<uint32_t> numbers(kRanks);
    std::iota(numbers.begin(), numbers.end(), 0u);
    ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index_, numbers));
    ASSERT_OK_AND_ASSIGN(group_, GroupPlan::Make(index_, cohorts, {}));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      slabs_.emplace_back(group_->Find(rank)->slab_bytes);
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      targets_.push_back({group_->Find(rank), {{{slabs_[rank]}}}, {rank}});
    }
    order_ = OrderScatter(*index_, {.step_bytes = 256});
    options_.digests = false;
    options_.threads = GetParam();
  }

  // Every second step, as one of two readers does.
  StepList EverySecond() const {
    StepList list{&order_, {}};
    for (size_t step = 0; step < order_.steps.size(); step += 2) list.steps.push_back(step);
    return list;
  }
  absl::Status Run() {
    TransferProgress progress(kRanks);
    return RunTransfer(*group_, EverySecond(), targets_, options_, progress, user_).status();
  }

  TempFolder folder_;
  std::shared_ptr<const CheckpointIndex> index_;
  absl::StatusOr<GroupPlan> group_ = absl::UnknownError("not planned");
  std::vector<std::vector<std::byte>> slabs_;
  std::vector<StepTarget> targets_;
  ScatterOrder order_;
  TransferOptions options_;
  NotingUser user_;
};

TEST_P(Steps, ArePlannedEnteredAndFilledOnceEachAndNobodyIsToldToStop) {
  ASSERT_OK(Run());
  const size_t count = EverySecond().steps.size();
  ASSERT_GT(count, 3u);
  EXPECT_EQ(user_.planned.size(), count);
  EXPECT_EQ(user_.filled.size(), count);
  // Nobody enters a step without bytes.
  EXPECT_TRUE(std::includes(user_.filled.begin(), user_.filled.end(), user_.entered.begin(),
                            user_.entered.end()));
  EXPECT_TRUE(user_.stopped.empty());
}

TEST_P(Steps, AUserWhoCannotPlanEndsTheTransferWithItsError) {
  user_.fails_plan = 2;
  EXPECT_EQ(Run(), user_.error);
  ASSERT_FALSE(user_.stopped.empty());
  EXPECT_EQ(user_.stopped.front(), user_.error);
  EXPECT_LE(user_.planned.size(), 3u);
}

TEST_P(Steps, AUserWhoLetsNobodyInEndsTheTransferWithItsError) {
  user_.fails_enter = 1;
  EXPECT_EQ(Run(), user_.error);
  ASSERT_FALSE(user_.stopped.empty());
  EXPECT_EQ(user_.stopped.front(), user_.error);
  EXPECT_EQ(user_.filled.count(1), 0u);
}

TEST_P(Steps, WhatStorageSaysReachesWhoeverWaitsForAStep) {
  std::filesystem::resize_file(index_->files[0].path, index_->files[0].bytes / 2);
  const absl::Status status = Run();
  EXPECT_FALSE(status.ok());
  ASSERT_FALSE(user_.stopped.empty());
  for (const absl::Status& told : user_.stopped) EXPECT_EQ(told, status);
}

TEST_P(Steps, AnInterruptionReachesWhoeverWaitsForAStep) {
  options_.interrupted = [] { return absl::CancelledError("enough"); };
  EXPECT_EQ(Run(), absl::CancelledError("enough"));
  ASSERT_FALSE(user_.stopped.empty());
  for (const absl::Status& told : user_.stopped) EXPECT_EQ(told, absl::CancelledError("enough"));
}

INSTANTIATE_TEST_SUITE_P(Threads, Steps, testing::Values(1u, 2u, 5u));

}  // namespace
}  // namespace ckptd

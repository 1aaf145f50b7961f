// Fixture of tests that run whole loads over a group of three ranks in one process.
#ifndef CKPTD_TESTS_TESTING_LOAD_RUNNER_FIXTURE_H_
#define CKPTD_TESTS_TESTING_LOAD_RUNNER_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "server/load/load_runner.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

inline constexpr char kName[] = "checkpoints/a";
inline constexpr uint64_t kAllBytes = SmallSource::kBytesA + SmallSource::kBytesB;

class LoadRunnerTest : public ::testing::Test {
 protected:
  ReadyLoad ByRules(const std::string& rules) {
    ReadyLoad load;
    load.name = kName;
    load.request = RuleRequest(rules, source_.path());
    load.deadline = Soon();
    load.request_digests.assign(group_.size(), RequestDigest(load.request));
    return load;
  }

  // Rank form: `wanted[rank]` whole, nothing stated where it is empty.
  ReadyLoad Stated(const std::vector<std::string>& wanted) {
    ReadyLoad load = ByRules("");
    for (uint32_t rank = 0; rank < wanted.size(); ++rank) {
      const LoadRequest one = RankRequest(rank, group_.size(), wanted[rank]);
      const auto layout = std::get<std::shared_ptr<const RankLayout>>(one.layout);
      load.layouts.push_back(wanted[rank].empty() ? nullptr : layout);
      if (!wanted[rank].empty()) load.request.layout = layout;
    }
    return load;
  }

  LoadOutcome Run(const ReadyLoad& load) { return Run(load, group_.peers(), CommChoice::kAuto); }
  // A load may be run again: each run begins with a state of its own.
  LoadOutcome Run(ReadyLoad load, PeerAccess peers, CommChoice comm) {
    load.state = std::make_shared<LoadStateMachine>(LoadState::kQueued);
    ReadingOptions reading;
    reading.threads = 2;
    reading.comm = comm;
    LoadRunner::Parts parts{group_.rank(0).catalog, group_.membership(), peers, stopping_, reading};
    return LoadRunner(parts, load, group_.membership().CurrentSession().value()).Run();
  }

  CheckpointInfo Info(uint32_t rank) { return group_.rank(rank).catalog.Get(kName).value(); }

  // Every rank was told of this failure, and holds nothing of the load.
  void ExpectAbortedEverywhere(absl::StatusCode code, const char* reason) {
    for (uint32_t rank = 0; rank < group_.size(); ++rank) {
      ASSERT_EQ(group_.rank(rank).link->aborts().size(), 1u) << "rank " << rank;
      EXPECT_THAT(group_.rank(rank).link->aborts()[0], FailsWith(code, reason));
      EXPECT_EQ(group_.rank(rank).memory->Usage().used, 0u) << "rank " << rank;
    }
  }

  SmallSource source_;
  GroupInProcess group_{3};
  std::atomic<bool> stopping_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_LOAD_RUNNER_FIXTURE_H_

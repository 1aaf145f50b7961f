// Pending loads of three ranks.
#ifndef CKPTD_TESTS_TESTING_PENDING_LOADS_FIXTURE_H_
#define CKPTD_TESTS_TESTING_PENDING_LOADS_FIXTURE_H_

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "server/load/pending_loads.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

class PendingLoadsTest : public ::testing::Test {
 protected:
  std::string Propose(uint32_t rank, const LoadRequest& request, bool reuse = true) {
    return pending_.Propose({rank, request}, reuse, now_).value().value_or("none yet");
  }
  std::string State(uint32_t rank, const std::string& tensor = "w") {
    return Propose(rank, RankRequest(rank, 3, tensor));
  }
  // Its runner goes on to that state.
  static void EnterAllocating(const ReadyLoad& load) {
    for (LoadState to : {LoadState::kOpening, LoadState::kPlanning, LoadState::kAllocating}) {
      EXPECT_OK(load.state->Advance(to));
    }
  }
  static void EnterPublishing(const ReadyLoad& load) {
    EnterAllocating(load);
    EXPECT_OK(load.state->Advance(LoadState::kPublishing));
  }
  void RunsInAnEpochThatHasPassed(const std::string& name) {
    pending_.NoteStarted(name, 1);
    pending_.NoteEpoch(2);
  }
  // All three state "w" and the load ends with these holders.
  std::string Load(const std::set<uint32_t>& holders) {
    for (uint32_t rank = 0; rank < 3; ++rank) State(rank);
    const std::vector<ReadyLoad> ready = pending_.TakeReady();
    pending_.Finished(ready.at(0).name,
                     {absl::OkStatus(), {{"/models/m/a", 1, "3", "5", "2", 4}}, holders, {}});
    return ready[0].name;
  }
  ResidentCheckpoint Resident(const std::string& name) {
    ResidentCheckpoint resident;
    resident.name = name;
    resident.load_key = LoadKey(RankRequest(0, 3));
    for (uint32_t rank = 0; rank < 3; ++rank) {
      resident.request_digests.push_back(RequestDigest(RankRequest(rank, 3)));
    }
    return resident;
  }

  PendingLoads pending_{3};
  const Clock::time_point now_ = Clock::now();
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_PENDING_LOADS_FIXTURE_H_

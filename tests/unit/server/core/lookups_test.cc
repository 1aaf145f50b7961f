#include "server/core/lookups.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// Storage on which "/hangs" does not answer before it is let go.
class Storage {
 public:
  Lookups::Check check() {
    return [this](const CheckpointIndex& index) {
      if (index.source == "/hangs") {
        ++asked;
        go_on_.wait();
      }
      return index.files.empty() ? absl::OkStatus() : absl::AbortedError(index.files[0].path);
    };
  }
  void GoOn() { let_go_.set_value(); }

  std::atomic<int> asked = 0;

 private:
  std::promise<void> let_go_;
  const std::shared_future<void> go_on_ = let_go_.get_future().share();
};

TEST(Lookups, GivesWhatTheCheckSaysOfThoseFiles) {
  Storage storage;
  Lookups lookups(storage.check());
  EXPECT_OK(lookups.CheckFiles("/fine", {}, Soon()));
  const std::vector<SourceFile> changed = {{"/fine/a", 1, 2, 3, 4, 5}};
  EXPECT_EQ(lookups.CheckFiles("/fine", changed, Soon()), absl::AbortedError("/fine/a"));
}

TEST(Lookups, StorageThatDoesNotAnswerKeepsNobodyWaitingWhoAsksAboutOtherFiles) {
  Storage storage;
  Lookups lookups(storage.check());
  const Deadline past = Clock::now();
  for (int i = 0; i < 3 * Lookups::kPerSource; ++i) {
    const absl::Status status = lookups.CheckFiles("/hangs", {}, past);
    EXPECT_THAT(status, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
    EXPECT_THAT(status, Says("checking the files of /hangs: the storage"));
    EXPECT_OK(lookups.CheckFiles("/fine", {}, Soon()));
  }
  storage.GoOn();
  EXPECT_OK(lookups.CheckFiles("/hangs", {}, Soon())) << "it answers again";
  EXPECT_LE(storage.asked, Lookups::kPerSource + 1) << "each of them has a thread that hangs";
}

TEST(Lookups, MayBeGoneBeforeItsStorageAnswers) {
  const auto storage = std::make_shared<Storage>();
  std::promise<void> ended;
  {
    Lookups lookups([&ended, storage, check = storage->check()](const CheckpointIndex& index) {
      const absl::Status status = check(index);
      ended.set_value();
      return status;
    });
    EXPECT_FALSE(lookups.CheckFiles("/hangs", {}, Clock::now()).ok());
  }
  storage->GoOn();
  ended.get_future().wait();
}

}  // namespace
}  // namespace ckptd

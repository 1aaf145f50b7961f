#include "server/load/source_checker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// Storage on which "/hangs" does not answer before it is let go. Checks may outlive it.
class Storage {
 public:
  SourceChecker::Check check() const {
    return [state = state_](const CheckpointIndex& index, const SourceAccess&) {
      if (index.source == "/hangs") {
        ++state->asked;
        state->go_on.wait();
      }
      return index.files.empty() ? absl::OkStatus() : absl::AbortedError(index.files[0].path);
    };
  }
  void GoOn() { state_->let_go.set_value(); }
  int asked() const { return state_->asked; }

 private:
  struct State {
    std::atomic<int> asked = 0;
    std::promise<void> let_go;
    std::shared_future<void> go_on = let_go.get_future().share();
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST(SourceChecker, GivesWhatTheCheckSaysOfThoseFiles) {
  Storage storage;
  SourceChecker lookups(storage.check());
  EXPECT_OK(lookups.CheckFiles("/fine", {}, Soon()));
  const std::vector<SourceFile> changed = {{"/fine/a", 1, "3", "5", "2", 4}};
  EXPECT_EQ(lookups.CheckFiles("/fine", changed, Soon()), absl::AbortedError("/fine/a"));
}

TEST(SourceChecker, StorageThatDoesNotAnswerKeepsNobodyWaitingWhoAsksAboutOtherFiles) {
  Storage storage;
  SourceChecker lookups(storage.check());
  const Deadline past = Clock::now();
  for (int i = 0; i < 3 * SourceChecker::kPerSource; ++i) {
    const absl::Status status = lookups.CheckFiles("/hangs", {}, past);
    EXPECT_THAT(status, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
    EXPECT_THAT(status, Says("checking the files of /hangs: the storage"));
    EXPECT_OK(lookups.CheckFiles("/fine", {}, Soon()));
  }
  storage.GoOn();
  EXPECT_OK(lookups.CheckFiles("/hangs", {}, Soon())) << "it answers again";
  EXPECT_LE(storage.asked(), SourceChecker::kPerSource + 1) << "each of them has a thread that hangs";
}

TEST(SourceChecker, MayBeGoneBeforeItsStorageAnswers) {
  Storage storage;
  const auto ended = std::make_shared<std::promise<void>>();
  {
    SourceChecker lookups([ended, check = storage.check()](const CheckpointIndex& index,
                                                           const SourceAccess& access) {
      const absl::Status status = check(index, access);
      ended->set_value();
      return status;
    });
    EXPECT_FALSE(lookups.CheckFiles("/hangs", {}, Clock::now()).ok());
  }
  storage.GoOn();
  ended->get_future().wait();
}

}  // namespace
}  // namespace ckptd

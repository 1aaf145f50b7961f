#include "server/node/query_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using Question = std::function<absl::StatusOr<int>()>;

class QuestionsTest : public ::testing::Test {
 protected:
  absl::StatusOr<int> Ask(Question question, const CallContext& asker) {
    return questions_.Ask<int>(std::move(question), asker, "asking");
  }
  // A query that runs until LetGo.
  std::future<absl::StatusOr<int>> Occupy() {
    const auto begun = std::make_shared<std::promise<void>>();
    auto asked = std::async(std::launch::async, [this, begun, held = hold_.get_future().share()] {
      return Ask([=] { begun->set_value(); held.wait(); return 1; }, Soon());
    });
    begun->get_future().wait();
    return asked;
  }
  void LetGo() { hold_.set_value(); }

  std::promise<void> hold_;
  QueryQueue questions_;
};

TEST_F(QuestionsTest, AreAnswered) {
  EXPECT_EQ(Ask([] { return 7; }, Soon()).value(), 7);
  EXPECT_EQ(Ask([] { return absl::NotFoundError("no"); }, Soon()).status(),
            absl::NotFoundError("no"));
}

TEST(Questions, PassOneWhoseStorageStandsStillAndItsAskerHearsOfTheFile) {
  const auto watch = std::make_shared<StorageWatch>("/ckpt", "/");
  std::atomic<bool> waits = false;
  std::promise<void> answers;
  QueryQueue questions(std::chrono::nanoseconds(0));
  auto hung = std::async(std::launch::async, [&] {
    const Question hangs = [&] {
      const StorageWatch::Call call(watch.get(), "/ckpt/b.safetensors", 4096);
      waits = true;
      answers.get_future().wait();
      return 1;
    };
    return questions.Ask<int>(hangs, CallContext(Soon(), [&waits] { return waits.load(); }),
                              "inspecting", watch);
  });
  EXPECT_THAT(hung.get(), testing::AllOf(FailsWith(absl::StatusCode::kDeadlineExceeded,
                                          reason::kStorageStalled),
                                Says("/ckpt/b.safetensors has not answered")));
  EXPECT_EQ(questions.Ask<int>([] { return 7; }, Soon(), "verifying").value(), 7);
  answers.set_value();
}

TEST_F(QuestionsTest, AnAskerThatHasGoneCostsNobodyAnything) {
  auto first = Occupy();
  std::atomic<int> answered = 0;
  const CallContext gone(Soon(), [] { return true; });
  const auto count = [&answered] { return ++answered; };
  for (int i = 0; i < 2 * QueryQueue::kMost; ++i) {
    EXPECT_THAT(Ask(count, gone), FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  }
  LetGo();
  EXPECT_EQ(first.get().value(), 1);
  EXPECT_EQ(Ask(count, Soon()).value(), 1) << "the first that is answered";
}

TEST_F(QuestionsTest, ADeadlineEndsTheWaitForAnAnswerThatTakesLonger) {
  auto first = Occupy();
  EXPECT_THAT(Ask([] { return 7; }, Clock::now()),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  LetGo();
  EXPECT_OK(first.get());
}

TEST_F(QuestionsTest, WhoComesWhenTooManyWaitIsTurnedAway) {
  std::vector<std::future<absl::StatusOr<int>>> waiting;
  waiting.push_back(Occupy());
  std::atomic<int> came = 1;
  while (waiting.size() < QueryQueue::kMost) {
    waiting.push_back(std::async(std::launch::async, [&] {
      return Ask([] { return 1; }, {Soon(), [&, first = true]() mutable {
                                      if (std::exchange(first, false)) ++came;
                                      return false;
                                    }});
    }));
  }
  for (const Deadline end = Soon(); came < QueryQueue::kMost && Clock::now() < end;) {
  }
  EXPECT_THAT(Ask([] { return 7; }, Soon()),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kInvalidRequest));
  LetGo();
  for (auto& one : waiting) EXPECT_EQ(one.get().value(), 1);
  EXPECT_EQ(Ask([] { return 7; }, Soon()).value(), 7);
}

TEST_F(QuestionsTest, ThatWaitAreAnsweredNoMoreOnceItStops) {
  auto first = Occupy();
  const auto came = std::make_shared<std::promise<void>>();
  std::atomic<bool> answered = false;
  auto second = std::async(std::launch::async, [&, came] {
    return Ask([&] { return answered = true; }, {Soon(), [came, asked = false]() mutable {
                                                   if (!std::exchange(asked, true)) came->set_value();
                                                   return false;
                                                 }});
  });
  came->get_future().wait();
  questions_.Stop();
  LetGo();
  EXPECT_OK(first.get());
  EXPECT_FALSE(second.get().ok());
  EXPECT_FALSE(answered);
}

}  // namespace
}  // namespace ckptd

#include "server/core/execute_fanout.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/core/membership.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// What the streams of one member do, and a sign that something was sent.
struct Script {
  absl::Status open;
  bool alive = true;       // false: Send says that the member is gone
  absl::Status finish;
  std::promise<void> sent;  // at the first Send
};

class ScriptedStream final : public ExecuteStream {
 public:
  explicit ScriptedStream(Script& script) : script_(script) {}
  bool Send(const Progress&) override {
    if (!std::exchange(told_, true)) script_.sent.set_value();
    return script_.alive;
  }
  absl::StatusOr<ReadReport> Finish() override {
    CKPTD_RETURN_IF_ERROR(script_.finish);
    return ReadReport();
  }

 private:
  Script& script_;
  bool told_ = false;
};

class StreamOnlyLink final : public MemberLink {
 public:
  explicit StreamOnlyLink(Script& script) : script_(script) {}
  absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall&) override {
    CKPTD_RETURN_IF_ERROR(script_.open);
    return std::make_unique<ScriptedStream>(script_);
  }
  absl::StatusOr<PrepareReply> Prepare(const PrepareCall&, Deadline) override {
    return PrepareReply();
  }
  std::unique_ptr<TransferSink> OpenSink(const SinkCall&) override { return nullptr; }
  absl::Status Commit(const CommitCall&, Deadline) override { return absl::OkStatus(); }
  absl::Status Abort(const std::string&, const absl::Status&, Deadline) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Holds(const std::string&, Deadline) override { return false; }
  absl::Status Probe(Deadline) override { return absl::OkStatus(); }

 private:
  Script& script_;
};

class ExecuteFanoutTest : public ::testing::Test {
 protected:
  std::unique_ptr<ExecuteFanout> Start() {
    std::vector<ExecuteFanout::Member> members = {
        {1, std::make_shared<StreamOnlyLink>(first_)},
        {4, std::make_shared<StreamOnlyLink>(second_)}};
    return std::make_unique<ExecuteFanout>(std::move(members),
                                           ExecuteFanout::Load{1, "checkpoints/a", Soon()},
                                           [] { return Progress(); });
  }

  Script first_;
  Script second_;
};

TEST_F(ExecuteFanoutTest, FinishesWhenAllMembersDo) {
  EXPECT_OK(Start()->Finish().second);
}

TEST_F(ExecuteFanoutTest, AMemberThatCannotBeReachedBreaksItAtOnce) {
  second_.open = absl::UnavailableError("nobody there");
  const auto fanout = Start();
  EXPECT_EQ(fanout->broken().first, 4u);
  EXPECT_EQ(fanout->broken().second, second_.open);
}

TEST_F(ExecuteFanoutTest, PushesProgressToEveryMember) {
  const auto fanout = Start();
  first_.sent.get_future().wait();
  second_.sent.get_future().wait();
  EXPECT_OK(fanout->broken().second);
}

TEST_F(ExecuteFanoutTest, AMemberThatGoesAwayInTheMiddleBreaksItWithItsReason) {
  second_.alive = false;
  second_.finish = RankLost(4, "it went away");
  const auto fanout = Start();
  second_.sent.get_future().wait();
  const auto [rank, why] = fanout->Finish();
  EXPECT_EQ(rank, 4u);
  EXPECT_THAT(why, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
}

TEST_F(ExecuteFanoutTest, AStreamThatEndsEarlyWithoutAReasonIsStillAnError) {
  first_.alive = false;
  const auto fanout = Start();
  first_.sent.get_future().wait();
  EXPECT_FALSE(fanout->Finish().second.ok());
}

TEST_F(ExecuteFanoutTest, GivesTheFirstMembersErrorAtTheEnd) {
  first_.finish = absl::InternalError("first");
  second_.finish = absl::InternalError("second");
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 1u);
  EXPECT_EQ(why, first_.finish);
}

}  // namespace
}  // namespace ckptd

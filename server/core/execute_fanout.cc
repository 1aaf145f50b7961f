#include "server/core/execute_fanout.h"

#include <future>

#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kAbortDeadline{2};

}  // namespace

ExecuteFanout::ExecuteFanout(std::vector<Member> members, Load load,
                             std::function<Progress()> progress)
    : members_(std::move(members)), load_(std::move(load)), progress_(std::move(progress)) {
  for (const Member& member : members_) {
    auto stream = member.link->Execute(
        {load_.epoch, load_.name, load_.deadline, member.read, member.scatter});
    if (!stream.ok()) {
      MutexLock lock(mutex_);
      broken_rank_ = member.rank;
      broken_ = stream.status();
      return;
    }
    streams_.push_back(std::move(stream).value());
  }
  ticker_ = std::thread([this] { Tick(); });
}

ExecuteFanout::~ExecuteFanout() { Stop(); }

void ExecuteFanout::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (ticker_.joinable()) ticker_.join();
}

void ExecuteFanout::Tick() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      const bool stop = changed_.WaitUntil(
          mutex_, Clock::now() + kTick,
          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
      if (stop) return;
    }
    const Progress progress = progress_();
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (streams_[i]->Send(progress)) continue;
      const absl::Status why = streams_[i]->Finish().status();
      MutexLock lock(mutex_);
      broken_rank_ = members_[i].rank;
      broken_ = why.ok() ? absl::UnavailableError("the transfer stream ended early") : why;
      return;
    }
  }
}

std::pair<uint32_t, absl::Status> ExecuteFanout::broken() const {
  MutexLock lock(mutex_);
  return {broken_rank_, broken_};
}

std::pair<uint32_t, absl::Status> ExecuteFanout::Finish() {
  Stop();
  if (auto early = broken(); !early.second.ok()) return early;
  std::vector<std::future<absl::StatusOr<ReadReport>>> answers;
  for (const auto& stream : streams_) {
    ExecuteStream* const raw = stream.get();
    answers.push_back(std::async(std::launch::async, [raw] { return raw->Finish(); }));
  }
  std::pair<uint32_t, absl::Status> first{0, absl::OkStatus()};
  for (size_t left = answers.size(); left > 0;) {
    progress_();  // of the members that still read
    const std::chrono::nanoseconds patience = kTick / left;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].valid() || answers[i].wait_for(patience) != std::future_status::ready) {
        continue;
      }
      --left;
      absl::StatusOr<ReadReport> answer = answers[i].get();
      if (!answer.ok() && first.second.ok()) {
        first = {members_[i].rank, answer.status()};
        AbortOthers(i, answer.status());
      }
      if (!answer.ok() || members_[i].read.empty()) continue;
      answer->reader = members_[i].rank;
      reports_.push_back(*std::move(answer));
    }
  }
  return first;
}

// Who still works for nothing stops then, and answers.
void ExecuteFanout::AbortOthers(size_t failed, const absl::Status& why) {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (i == failed || !members_[i].works()) continue;
    // Who cannot be told is about to be dropped, which ends its stream.
    members_[i].link->Abort(load_.name, why, Clock::now() + kAbortDeadline).IgnoreError();
  }
}

}  // namespace ckptd

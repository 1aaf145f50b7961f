#include "server/load/stream_answers.h"

#include <algorithm>

#include "common/base/at_once.h"
#include "common/base/status.h"

namespace ckptd {

StreamAnswers::~StreamAnswers() {
  for (std::thread& thread : threads_) thread.join();
}

absl::Status StreamAnswers::Start(size_t most) {
  const size_t count = std::min(most, streams_.size());
  {
    MutexLock lock(mutex_);
    std::fill_n(states_.begin(), count, State::kTaken);
  }
  for (size_t i = 0; i < count; ++i) {
    auto thread = StartThread("waiting for a rank's part", [this, i] { Run(i); });
    if (thread.ok()) {
      threads_.push_back(*std::move(thread));
      continue;
    }
    if (i == 0) return thread.status();
    for (size_t left = i; left < count; ++left) GiveBack(left, State::kFree);
    break;  // those that run do the work
  }
  return absl::OkStatus();
}

void StreamAnswers::Run(size_t first) {
  for (std::optional<size_t> stream = first; stream.has_value(); stream = TakeNext()) {
    Note(*stream, streams_[*stream]->Finish());
  }
}

std::optional<size_t> StreamAnswers::TakeNext() {
  MutexLock lock(mutex_);
  for (;;) {
    while (next_ < states_.size() && states_[next_] == State::kTaken) ++next_;
    if (next_ == states_.size()) return std::nullopt;
    if (states_[next_] == State::kFree) break;
    changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return next_ == states_.size() || states_[next_] != State::kSentTo;
    });
  }
  states_[next_] = State::kTaken;
  return next_++;
}

bool StreamAnswers::Borrow(size_t stream) {
  MutexLock lock(mutex_);
  if (states_[stream] != State::kFree) return false;
  states_[stream] = State::kSentTo;
  return true;
}

void StreamAnswers::GiveBack(size_t stream, State state) {
  MutexLock lock(mutex_);
  states_[stream] = state;
  changed_.NotifyAll();
}

void StreamAnswers::Note(size_t stream, absl::StatusOr<ReadReport> answer) {
  MutexLock lock(mutex_);
  answers_.emplace_back(stream, std::move(answer));
  changed_.NotifyAll();
}

void StreamAnswers::Send(const Progress& progress) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (!Borrow(i)) continue;
    const bool alive = streams_[i]->Send(progress);
    GiveBack(i, alive ? State::kFree : State::kTaken);
    if (!alive) Note(i, EndedEarly(*streams_[i]));
  }
}

std::vector<StreamAnswers::Answer> StreamAnswers::Take(std::chrono::nanoseconds wait) {
  std::vector<Answer> taken;
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, Clock::now() + std::chrono::duration_cast<Clock::duration>(wait),
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !answers_.empty(); });
  taken.swap(answers_);
  return taken;
}

absl::Status EndedEarly(ExecuteStream& stream) {
  const absl::Status why = stream.Finish().status();
  return why.ok() ? absl::UnavailableError("the transfer stream ended early") : why;
}

}  // namespace ckptd

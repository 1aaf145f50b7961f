// Runs the Execute streams of all members while bytes are being placed: pushes
// progress ten times a second and notices a member that goes away at once.
#ifndef CKPTD_SERVER_LOAD_EXECUTE_FANOUT_H_
#define CKPTD_SERVER_LOAD_EXECUTE_FANOUT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/load/stream_answers.h"
#include "server/protocol/links.h"

namespace ckptd {

// Made and destroyed by one thread; broken() from any. Destruction without
// Finish aborts the streams.
class ExecuteFanout {
 public:
  struct Member {
    uint32_t rank = 0;
    std::shared_ptr<MemberLink> link;
    // What it is told to do, made when it is told: what names all ranks for each of many ranks
    // would fill memory. Called while the fan-out is made; null: nothing.
    std::function<ReadOrder()> read = nullptr;
    std::function<ScatterCall()> scatter = nullptr;

    // It does something that it must be told to end.
    bool works() const { return read != nullptr || scatter != nullptr; }
  };
  struct Load {
    uint64_t epoch = 0;
    std::string name;
    Deadline deadline;
    // How long nothing may happen once all bytes were read, while ranks still wait for what a
    // communicator brings: each of its exchanges takes less.
    std::chrono::nanoseconds patience = std::chrono::seconds(8);
    // Called before a rank hears that the load fails: whose clients may ask again at once.
    std::function<void()> failing = nullptr;
    // Called in Finish, as the report of each member that read comes.
    std::function<void(const ReadReport&)> answered = nullptr;
    // Not OK once somebody has given the load up: members that still work are told to end.
    std::function<absl::Status()> cancelled = absl::OkStatus;
  };
  ExecuteFanout(std::vector<Member> members, Load load, std::function<Progress()> progress);
  ~ExecuteFanout();
  ExecuteFanout(const ExecuteFanout&) = delete;
  ExecuteFanout& operator=(const ExecuteFanout&) = delete;

  // A rank and why it failed; OK: none did.
  using Failure = std::pair<uint32_t, absl::Status>;
  // The first stream's, or of those that break soon after it the first that says more than that
  // another rank has failed; OK while all run.
  Failure broken() const;
  // The same, waiting for it a little: where what the leader has seen itself says no more.
  Failure AwaitBroken() const;
  // Tells every member that the leader's own reading is done and waits for them
  // all, calling `progress` meanwhile: the first rank that failed and why, as broken, or (0, OK).
  // DeadlineExceeded DEADLINE names ranks for which a communicator stands still; of several, and
  // what Load::cancelled says, comes as rank 0's.
  Failure Finish();

 private:
  // The error that is to be told of a load, of those that have come.
  struct Cause {
    Failure failure = {};
    std::optional<size_t> member = std::nullopt;  // who has answered it
    Clock::time_point since = {};                 // of the first

    // Whether others are to hear of it now.
    bool Settled() const;
    void Note(Failure next, std::optional<size_t> of);
  };

  void Tick();
  // Sends to all that have not broken; notes those that break.
  void SendAll(const Progress& progress, std::vector<bool>& ended, Cause& cause);
  void Stop();
  absl::StatusOr<std::unique_ptr<ExecuteStream>> Begin(const Member& member) const;
  // Tells the others of the cause, once.
  void TellOthers(const Cause& cause, bool& told);
  // Notes who has answered, and the errors while nobody was `told` of one. How many did.
  size_t Collect(StreamAnswers& answers, bool told, std::vector<bool>& answered, Cause& cause);
  // OK unless a member that still has not answered waits for a communicator.
  Failure Stalled(const std::vector<bool>& answered) const;
  // All but `failed`.
  void AbortOthers(std::optional<size_t> failed, const absl::Status& why);

  const std::vector<Member> members_;
  const Load load_;
  const std::function<Progress()> progress_;
  std::vector<std::unique_ptr<ExecuteStream>> streams_;  // the ticker's, then Finish's
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t broken_rank_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::thread ticker_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_EXECUTE_FANOUT_H_

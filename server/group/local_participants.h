// The clients of one daemon that take part in a load of all ranks, and what the leader is to
// hear of them. Thread-safe; answers are given outside of its lock.
#ifndef CKPTD_SERVER_GROUP_LOCAL_PARTICIPANTS_H_
#define CKPTD_SERVER_GROUP_LOCAL_PARTICIPANTS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/protocol/domain.h"
#include "server/protocol/participant.h"

namespace ckptd {

class LocalParticipants {
 public:
  // Called once. OK: all has been placed.
  using Answer = std::function<void(const absl::Status&)>;

  // `on_change`: there is news for the leader.
  explicit LocalParticipants(std::function<void()> on_change) : on_change_(std::move(on_change)) {}

  // Errors, after which `answer` is not called: INVALID_REQUEST, TOO_MANY_WAITING.
  absl::Status Join(Participant participant, Answer answer, Clock::time_point now);
  // It has placed its shard, or failed. One that is not known yet is waited for a moment: its
  // call may be overtaken. Returns when the leader knows of a failure, at the deadline at last.
  void Leave(const std::string& id, const absl::Status& outcome, Deadline deadline);
  // Its call has ended before it said anything: so has its process, as a rule.
  void Lost(const std::string& id);
  // The leader that knew who had placed what is gone: those that wait for all ranks, or would when
  // they have placed theirs, are answered with `why` and forgotten.
  void EndBarriers(const absl::Status& why);

  // For the leader: all that there are, in the order in which they joined. Not what ended so long
  // ago that nobody is to hear of it: where no leader answers, it would take the room of others.
  std::vector<Participant> Snapshot(Clock::time_point now);
  // The leader was told that snapshot and answered so.
  void Told(const std::vector<Participant>& told, const std::vector<Verdict>& verdicts);
  bool Empty() const;

 private:
  struct Entry {
    Participant participant;
    Clock::time_point joined;
    uint64_t order = 0;
    Answer answer;  // null: it was called
    Clock::time_point ended = {};  // when it was no longer loading
  };
  // Takes the answer that it is to be given with `outcome`, outside the lock; null where there is none.
  Answer End(Entry& entry, const absl::Status& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOld(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> on_change_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t joined_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t leaving_ ABSL_GUARDED_BY(mutex_) = 0;  // calls that wait
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_LOCAL_PARTICIPANTS_H_

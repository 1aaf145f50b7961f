// The clients of one daemon that take part in a load of all ranks, and what the leader must know
// of them. Thread-safe. Answers are called without its lock.
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
  // Called once. OK: all shards have been placed.
  using Answer = std::function<void(const absl::Status&)>;

  // `on_change`: there is news for the leader.
  explicit LocalParticipants(std::function<void()> on_change) : on_change_(std::move(on_change)) {}

  // Errors, after which `answer` is not called: INVALID_REQUEST, TOO_MANY_WAITING.
  absl::Status Join(Participant participant, Answer answer, Clock::time_point now);
  // The participant has placed its shard, or failed. Its Join may arrive later than this call, so
  // an unknown one is waited for briefly, and how it ended is kept for a Join that comes even later.
  // Returns when the leader knows of a failure, at the latest at the deadline.
  void Leave(const std::string& id, const absl::Status& outcome, Deadline deadline);
  // The participant's call has ended without Leave. In most cases its process has ended.
  void Lost(const std::string& id);
  // The leader that knew which ranks have placed their shards is gone. Participants with a
  // barrier are answered with `why` and removed.
  void EndBarriers(const absl::Status& why);

  // The participants for the next report to the leader, in the order in which they joined. Those
  // that ended so long ago that nobody is notified of them are left out. Otherwise they would use
  // up the limit if no leader answers.
  std::vector<Participant> Snapshot(Clock::time_point now);
  // The leader got that snapshot and answered with `verdicts`.
  void NoteDelivered(const std::vector<Participant>& told, const std::vector<Verdict>& verdicts);
  bool Empty() const;

 private:
  struct Entry {
    Participant participant;
    Clock::time_point joined;
    uint64_t order = 0;
    Answer answer;                 // null: it was called
    Clock::time_point ended = {};  // when it stopped loading
  };
  struct Early {
    absl::Status outcome;
    Clock::time_point at;
  };
  // Ends the entry. Returns the answer to call with `outcome`, without the lock. Null if there is
  // none.
  Answer End(Entry& entry, const absl::Status& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps the outcome for a Join that has not come.
  void NoteEarly(const std::string& id, const absl::Status& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOld(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> on_change_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Outcomes that came before their Join, by id.
  std::map<std::string, Early> early_ ABSL_GUARDED_BY(mutex_);
  uint64_t joined_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t leaving_ ABSL_GUARDED_BY(mutex_) = 0;  // waiting calls of Leave
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_LOCAL_PARTICIPANTS_H_

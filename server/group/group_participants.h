// All clients of the group that take part in loads of all ranks, as the leader knows them. It
// notifies the others when one fails, and when all have placed their shards. The leader's
// Coordinator owns it. Thread-safe; time is passed in.
//
// A failure belongs to one call of one rank. Other participants of that load are notified: those
// in it at once, and those that join within timing::kFailureVisibleFor if their process existed at the
// failure. The latter wait timing::kRejoinGrace, because the failed rank may make its next call first. A
// process is notified of a failure once, and nobody is after that rank's next call, so a failure
// never ends a later load. The time of the failure counts, not the time of its report. Without a
// leader the report may come much later.
//
// Jobs that use the same daemons load the same files. If two jobs are known to differ, neither is
// notified of the other's failures.
#ifndef CKPTD_SERVER_GROUP_GROUP_PARTICIPANTS_H_
#define CKPTD_SERVER_GROUP_GROUP_PARTICIPANTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/protocol/domain.h"
#include "server/protocol/participant.h"

namespace ckptd {

class GroupParticipants {
 public:
  explicit GroupParticipants(uint32_t world_size) : calls_(world_size) {}

  // Reports all participants at `rank`, in the order in which they joined. Returns the verdicts
  // of those whose load has ended. A verdict is returned each time, until its participant is no
  // longer reported.
  std::vector<Verdict> Update(uint32_t rank, const std::vector<Participant>& all,
                              Clock::time_point now);
  // The rank's daemon has left the group, so its clients have failed.
  void Forget(uint32_t rank, Clock::time_point now);
  // The sources of pending loads that should end because a participant has failed, as its clients
  // spell them. Not listed: a source for which a client still waits that is not affected by the
  // failure. Returns those since the last call.
  struct Ended {
    std::set<std::string> sources;
    absl::Status why;
    std::optional<uid_t> guest = {};  // the user whose loads those are
  };
  std::vector<Ended> TakeEnded();
  // The jobs of the user's clients in a load of `source` at that rank. Contains an empty one if a
  // job is not known.
  std::set<std::string> JobsOf(uint32_t rank, const std::string& source,
                               std::optional<uid_t> guest = std::nullopt) const;

 private:
  struct Call {
    Participant participant;
    uint32_t rank = 0;
    Clock::time_point joined;
    Clock::time_point began;  // when the leader got its first report
    Clock::time_point process_began;
    Clock::time_point deadline;
    std::set<uint32_t> placed;  // ranks that have placed theirs, with a barrier
    std::optional<absl::Status> verdict;
  };
  using Calls = std::map<std::string, Call>;
  struct FailedCall {
    uint32_t rank = 0;
    Participant participant;
    absl::Status why;
    Clock::time_point when;
    Clock::time_point reported;                        // when the leader got the report
    std::set<std::pair<uint32_t, uint32_t>> notified;  // processes that were notified: rank and pid
    bool over = false;                                 // the rank has made its next call
  };

  void Begin(uint32_t rank, const Participant& participant, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `rejoined`: its rank has made its next call since this one ended.
  void Advance(Call& call, const Participant& participant, bool rejoined, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A call may end well before its verdict arrives. Then its process has not been notified, and its
  // next call would wait for the failed rank.
  void NoteUnheard(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static FailedCall FailedOf(const Call& call, const absl::Status& why, Clock::time_point now);
  void Fail(FailedCall failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyOthers(FailedCall& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void ApplyFailure(Call& call, FailedCall& failed);
  // Applies failures from before it joined, or in other loads.
  void ApplyEarlierFailures(Call& call, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsInACall(uint32_t rank, const Participant& of_its_job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWaitedFor(const std::string& source, std::optional<uid_t> guest) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotePlaced(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckDeadline(Call& call, Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Missing(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Act>
  void ForOpenCallsOfOthers(uint32_t rank, const Participant& participant, Act act)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::vector<Calls> calls_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::deque<FailedCall> failed_ ABSL_GUARDED_BY(mutex_);
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_GROUP_PARTICIPANTS_H_

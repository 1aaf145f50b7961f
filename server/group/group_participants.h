// All clients of the group that take part in a load of all ranks, as the leader knows them: it
// tells the others when one fails, and when all have placed their shards. Thread-safe; time is
// passed in.
//
// A failure belongs to one call of one rank. The others of that load hear of it: those in it at
// once, and those who come within kHeardFor and whose processes lived then, unless that rank makes
// its next call first: it has timing::kComesAgain for that. A process hears a failure once, and nobody
// does after that rank's next call: what has failed once never ends a later load. When it failed
// counts, not when the leader is told: that may be long after, where there was no leader.
//
// Jobs that use the same daemons load the same files: where two are known to differ, neither hears
// of the other.
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

  // All that take part at `rank`, in the order in which they joined, as its daemon says now.
  // How their loads have ended, for those where that is known: each time, until they are gone.
  std::vector<Verdict> Update(uint32_t rank, const std::vector<Participant>& all,
                              Clock::time_point now);
  // Its daemon has left the group: its clients have failed.
  void Forget(uint32_t rank, Clock::time_point now);
  // Loads that wait for ranks have nobody to wait for any more where one of them has failed: those
  // of these sources, as the clients in them spell it. None that a client still waits in, who does
  // not hear of that failure. Since this was called last.
  struct Ended {
    std::set<std::string> sources;
    absl::Status why;
  };
  std::vector<Ended> TakeEnded();
  // Whose clients are in a load of `source` at that rank; an empty one where it is not known.
  std::set<std::string> JobsOf(uint32_t rank, const std::string& source) const;

 private:
  struct Call {
    Participant participant;
    uint32_t rank = 0;
    Clock::time_point joined;
    Clock::time_point began;  // when the leader heard of it
    Clock::time_point process_began;
    Clock::time_point deadline;
    std::set<uint32_t> placed;  // ranks, with a barrier
    std::optional<absl::Status> verdict;
  };
  using Calls = std::map<std::string, Call>;
  struct FailedCall {
    uint32_t rank = 0;
    Participant participant;
    absl::Status why;
    Clock::time_point when;
    Clock::time_point told;  // when the leader heard of it
    std::set<std::pair<uint32_t, uint32_t>> heard;  // by these processes: rank and pid
    bool over = false;  // the rank has made its next call
  };

  void Begin(uint32_t rank, const Participant& participant, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `came_again`: its rank has made its next call since this one ended.
  void Advance(Call& call, const Participant& participant, bool came_again, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static FailedCall FailedOf(const Call& call, const absl::Status& why, Clock::time_point now);
  void Fail(FailedCall failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellOthers(FailedCall& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Hear(Call& call, FailedCall& failed);
  // What happened before it came, or elsewhere.
  void HearOfOthers(Call& call, Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsInACall(uint32_t rank, const std::string& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWaitedFor(const std::string& source) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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

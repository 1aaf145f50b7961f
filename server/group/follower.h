// A member's tie to its leader: joins, sends heartbeats, joins again after
// either side has restarted, and fails what was loading when the tie breaks.
// Thread-safe.
#ifndef CKPTD_SERVER_GROUP_FOLLOWER_H_
#define CKPTD_SERVER_GROUP_FOLLOWER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/catalog/catalog.h"
#include "server/group/local_participants.h"
#include "server/group/membership_diff.h"
#include "server/protocol/links.h"

namespace ckptd {

class Follower {
 public:
  struct Parts {
    Catalog& catalog;
    SlabAllocator& memory;
    std::shared_ptr<LeaderLink> leader;
    std::function<void(const std::string&)> on_secret;
    ReadProgressPublisher& reading;
    // That process is gone: what we have of it can go.
    std::function<void(uint32_t rank, const std::string& incarnation)> on_departed =
        [](uint32_t, const std::string&) {};
    // For how long a load waits on a rank whose join the leader refuses: the reason may be a
    // predecessor that is still ending.
    std::chrono::nanoseconds refused_patience = std::chrono::seconds(5);
    // Of this rank, for the leader to hear of; null: none.
    LocalParticipants* participants = nullptr;
  };
  Follower(Parts parts, MemberIdentity identity);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  struct State {
    bool joined = false;
    uint64_t epoch = 0;
    std::vector<uint32_t> missing_ranks;  // of the group, as the leader says
    std::string detail;                   // why not joined
    bool refused = false;                 // the leader said so
  };
  State state() const;
  // The group's, as the leader gave it last; empty before the first join.
  std::string secret() const;
  // True once the group is complete.
  bool WaitReady(Deadline deadline) const;
  // Whether a call of that epoch is one of the group as we know it. Only the
  // leader's own answers move our epoch: anybody can reach the port. Waits for seconds at
  // most while this rank is about to join again.
  bool IsCurrent(uint64_t epoch) const;
  absl::StatusOr<std::string> Propose(const LoadRequest& request, Deadline deadline);
  // Between two heartbeats of a member, of those that come each `interval`; `often`: where there may
  // be news, as far as the leader has time for that many members.
  static std::chrono::nanoseconds BeatPause(std::chrono::nanoseconds interval, bool often,
                                            uint32_t world_size);
  // As LeaderLink::FindMissing.
  absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string& name, Deadline deadline) {
    return parts_.leader->FindMissing(name, deadline);
  }
  // As LeaderLink::CancelLoad.
  absl::Status CancelLoad(const std::string& name, Deadline deadline) {
    return parts_.leader->CancelLoad(identity_.rank, name, deadline);
  }
  // There is news for the leader, which the next heartbeat would tell it too late.
  void Hurry();
  void Stop();

 private:
  void Loop();
  bool Join();
  void EndWhatTheLeaderForgot(bool restarted, uint64_t since);
  void NotJoined(const absl::Status& why, uint64_t since);
  // False when the leader no longer knows us, or is silent for too long.
  bool Beat();
  // The same, of a heartbeat that was `asked` then and failed.
  bool StillKnown(const absl::Status& why, Clock::time_point asked);
  // What was loading fails with the reason, which may be known only once this has joined again.
  void LoseLeader(const std::string& why);
  bool Pause(std::chrono::nanoseconds duration);  // false: stopping
  // Whether anybody waits for what the next heartbeat tells, or brings.
  bool HasNews() const;

  const Parts parts_;
  const MemberIdentity identity_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_);
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  bool hurry_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string leader_incarnation_;  // the loop's own
  std::chrono::nanoseconds interval_{std::chrono::seconds(1)};
  std::chrono::nanoseconds timeout_{std::chrono::seconds(5)};
  Clock::time_point last_answer_;
  uint64_t members_epoch_ = 0;  // of present_
  std::vector<std::string> abandoned_;  // that the leader has not been told for certain
  MembershipDiff present_;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_FOLLOWER_H_

// A member's connection to its leader. Joins the group, sends heartbeats, and joins again after
// either side has restarted. Fails loads in progress when the connection is lost. Node owns it.
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
    // That process has left, so what this daemon keeps for it can be dropped.
    std::function<void(uint32_t rank, const std::string& incarnation)> on_departed =
        [](uint32_t, const std::string&) {};
    // How long a load waits for this rank if the leader refuses its join. A previous process of
    // this rank may still be ending.
    std::chrono::nanoseconds refused_patience = std::chrono::seconds(5);
    // Clients of this rank, reported to the leader. Null: none.
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
    std::string detail;                   // why it has not joined
    bool refused = false;                 // the leader has refused the join
  };
  State state() const;
  // The group's secret, as the leader gave it last. Empty before the first join.
  std::string secret() const;
  // True once the group is complete. False at the deadline.
  bool WaitReady(Deadline deadline) const;
  // Whether a call of that epoch belongs to the group as we know it. Only the leader's own
  // answers move our epoch, because anybody can reach the port. Waits up to seconds while this
  // rank is joining again.
  bool IsCurrent(uint64_t epoch) const;
  absl::StatusOr<std::string> Propose(const LoadRequest& request, Deadline deadline);
  // The pause between two heartbeats, if they come each `interval`. `often`: there may be news,
  // so they come as often as the leader can handle with that many members.
  static std::chrono::nanoseconds HeartbeatPause(std::chrono::nanoseconds interval, bool often,
                                                 uint32_t world_size);
  // As LeaderLink::FindMissing.
  absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string& name, Deadline deadline) {
    return parts_.leader->FindMissing(name, deadline);
  }
  // As LeaderLink::CancelLoad.
  absl::Status CancelLoad(const std::string& name, Deadline deadline) {
    return parts_.leader->CancelLoad(identity_.rank, name, deadline);
  }
  // Sends the next heartbeat at once, because there is news for the leader.
  void SendHeartbeatNow();
  void Stop();

 private:
  void Loop();
  bool Join();
  void EndLoadsUnknownToLeader(bool restarted, uint64_t since);
  void NotJoined(const absl::Status& why, uint64_t since);
  // False if the leader no longer knows this rank, or has been silent for too long.
  bool SendHeartbeat();
  // The same, for a heartbeat that was sent at `asked` and failed.
  bool IsStillMember(const absl::Status& why, Clock::time_point asked);
  // Marks this rank as not joined. Loads in progress fail when it has joined again, or could not.
  void OnLeaderLost(const std::string& why);
  bool Pause(std::chrono::nanoseconds duration);  // false: stopping
  // Whether somebody waits for what the next heartbeat carries in either direction.
  bool HasNews() const;

  const Parts parts_;
  const MemberIdentity identity_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_);
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  bool heartbeat_due_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string leader_incarnation_;  // used by the loop only
  std::chrono::nanoseconds interval_{std::chrono::seconds(1)};
  std::chrono::nanoseconds timeout_{std::chrono::seconds(5)};
  Clock::time_point last_answer_;
  uint64_t members_epoch_ = 0;          // epoch of present_
  std::vector<std::string> abandoned_;  // may not have reached the leader yet
  MembershipDiff present_;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_FOLLOWER_H_

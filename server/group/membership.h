// The members of the group, as the leader knows them. Every change of membership starts a new
// epoch. The leader's Coordinator owns it. Thread-safe: one mutex; links are called without it.
#ifndef CKPTD_SERVER_GROUP_MEMBERSHIP_H_
#define CKPTD_SERVER_GROUP_MEMBERSHIP_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/protocol/links.h"

namespace ckptd {

struct MemberState {
  MemberIdentity identity;
  bool joined = false;
  Clock::time_point last_heartbeat;
};

class Membership {
 public:
  using LinkFactory = std::function<std::shared_ptr<MemberLink>(const MemberIdentity&)>;
  struct Options {
    MemberIdentity self;  // rank 0
    std::shared_ptr<MemberLink> self_link;
    LinkFactory connect;  // connects to another member's peer port; does not block
    std::chrono::nanoseconds heartbeat_interval = std::chrono::seconds(1);
    std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(5);
  };
  explicit Membership(Options options);

  // Errors: FailedPrecondition JOIN_REFUSED saying which fact differs or which process holds the
  // rank. A holder that no longer answers is replaced.
  absl::StatusOr<JoinReply> Join(const MemberIdentity& identity);
  // Errors: NotFound if that incarnation is not a member (it should join again).
  absl::StatusOr<HeartbeatReply> Heartbeat(uint32_t rank, const std::string& incarnation);
  // Declares members lost that have been silent for too long. Returns their ranks.
  std::vector<uint32_t> DropSilent();
  // Declares a member lost that did not answer in `epoch`; calls to it fail. Does nothing if it
  // has joined since, because a process that was stopped joins again as the same process.
  void Drop(uint32_t rank, uint64_t epoch, const std::string& why);

  uint64_t epoch() const;
  // Waits until every rank has joined. False at the deadline.
  bool WaitComplete(Deadline deadline) const;
  uint32_t world_size() const { return options_.self.world_size; }
  std::vector<uint32_t> MissingRanks() const;
  std::vector<MemberState> Members() const;
  // The members' incarnations, by rank.
  std::map<uint32_t, std::string> Incarnations() const;
  // The changes of that map after `epoch`. A rank that has left has an empty incarnation. After
  // 0: the whole map, but only once no rank is missing. Otherwise each join would be reported to
  // all other ranks.
  std::map<uint32_t, std::string> ChangedSince(uint64_t epoch) const;
  // Links to the members that have joined, including rank 0's own.
  std::vector<std::shared_ptr<MemberLink>> Links() const;
  std::string secret() const { return secret_; }
  std::chrono::nanoseconds heartbeat_interval() const { return options_.heartbeat_interval; }

  // Links of all ranks, in rank order, and the epoch they belong to. Nullopt while a rank is
  // missing.
  struct Session {
    uint64_t epoch = 0;
    std::vector<std::shared_ptr<MemberLink>> links;
    std::vector<MemberIdentity> identities;
  };
  std::optional<Session> CurrentSession() const;
  // OK while `epoch` is the current one. Otherwise RANK_LOST or EPOCH_CHANGED naming the rank
  // whose change ended it.
  absl::Status CheckEpoch(uint64_t epoch) const;

 private:
  struct Member {
    MemberState state;
    std::shared_ptr<MemberLink> link;
    uint64_t since = 0;  // the epoch that began when it joined or left
  };
  // Removes the member. Returns its link, to be closed without the lock.
  std::shared_ptr<MemberLink> TakeLink(uint32_t rank, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckIdentity(const MemberIdentity& identity) const;
  // Makes sure that the previous holder of the rank is gone. Errors: JOIN_REFUSED.
  absl::Status FreeRankFor(const MemberIdentity& who);
  void StartEpoch(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::string secret_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status last_change_ ABSL_GUARDED_BY(mutex_);
};

absl::Status RankLost(uint32_t rank, const std::string& why);

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_MEMBERSHIP_H_

// Holds this daemon's communicator during a load and, if it is to be kept, until the group
// changes.
#ifndef CKPTD_SERVER_COLLECTIVE_COMMUNICATOR_CACHE_H_
#define CKPTD_SERVER_COLLECTIVE_COMMUNICATOR_CACHE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/comm/group_comm.h"

namespace ckptd {

// Only the load worker uses it, except for version(), which is thread-safe.
class CommunicatorCache {
 public:
  // `comms` must outlive it. Null: this daemon has none, and `why_none` is the reason.
  CommunicatorCache(GroupComms* comms, std::string why_none, bool keep)
      : comms_(comms), why_none_(std::move(why_none)), keep_(keep) {}

  // Empty: there is no NCCL.
  std::string version() const { return comms_ == nullptr ? "" : comms_->version(); }
  const std::string& why_none() const { return why_none_; }
  // Loads of this epoch's group no longer use a communicator, unless the settings demand one.
  void DisableForEpoch(uint64_t epoch) { disabled_for_ = epoch; }
  bool EnabledFor(uint64_t epoch) const { return disabled_for_ != epoch; }

  // Id of the communicator that is held. Empty: none.
  std::string held_id() const { return held_ == nullptr || failed_ ? "" : id_; }
  // Called by the leader: the id of a communicator for these ranks, in this order. `held`: the id
  // that each of them holds. If all hold one that was made for exactly these ranks, it is used
  // again. Otherwise they must join a new one.
  absl::StatusOr<std::string> IdFor(uint64_t epoch, const std::vector<uint32_t>& ranks,
                                    const std::vector<std::string>& held);
  // The communicator with that id. Joins it if it is not held yet. This object owns it.
  absl::StatusOr<GroupComm*> Join(GroupCommOptions options, GroupComm::Deadline deadline);
  // Drops the held communicator and the ids of all others, because other ranks may have lost
  // theirs. Waits for the teardown, too.
  void Drop();
  // The load that used it has ended with `status`. After an error it cannot be used again. Its
  // teardown is left to AwaitTeardown, so that others hear of the error first.
  void Done(const absl::Status& status);
  // Waits, up to seconds, for the teardown of failed communicators. Call it before the next load.
  void AwaitTeardown();

 private:
  GroupComms* const comms_;
  const std::string why_none_;
  const bool keep_;
  uint64_t disabled_for_ = 0;  // 0: none, because epochs begin at 1
  // On the leader: ids in this epoch, by the ranks they were made for.
  std::map<std::vector<uint32_t>, std::string> made_;
  uint64_t made_in_ = 0;
  std::string id_;
  std::unique_ptr<GroupComm> held_;
  bool failed_ = false;  // the held communicator, or joining it, has failed
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_COMMUNICATOR_CACHE_H_

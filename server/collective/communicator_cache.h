// The communicator that this daemon holds, during a load and, if it is to be kept, until the
// group changes.
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

// The load worker's, but for version().
class CommunicatorCache {
 public:
  // `comms` outlives it; null: this daemon has none, because of `why_none`.
  CommunicatorCache(GroupComms* comms, std::string why_none, bool keep)
      : comms_(comms), why_none_(std::move(why_none)), keep_(keep) {}

  // Empty: none.
  std::string version() const { return comms_ == nullptr ? "" : comms_->version(); }
  const std::string& why_none() const { return why_none_; }
  // Where the choice is left to the daemons: loads of the group of this epoch go without it.
  void DisableForEpoch(uint64_t epoch) { disabled_for_ = epoch; }
  bool EnabledFor(uint64_t epoch) const { return disabled_for_ != epoch; }

  // Of the communicator that is held, as its id; empty: none.
  std::string held_id() const { return held_ == nullptr || failed_ ? "" : id_; }
  // The leader's: the id of the communicator of these ranks, in this order. `held`: what each of
  // them holds. One that all hold and that was made for just them goes on, else they join a new one.
  absl::StatusOr<std::string> IdFor(uint64_t epoch, const std::vector<uint32_t>& ranks,
                                    const std::vector<std::string>& held);
  // The one with that id, joined if it is not held yet; it belongs to this.
  absl::StatusOr<GroupComm*> Join(GroupCommOptions options, GroupComm::Deadline deadline);
  // Gives up the one that is held, and those of others: not all of them may have theirs any more.
  // Settles, too.
  void Drop();
  // What it was joined for has ended so. After an error it is of no more use, and what it still
  // does is left to Settle: others should hear of the error first.
  void Done(const absl::Status& status);
  // Waits for what is left of communicators that have failed, it may be for seconds. Before the
  // next load.
  void AwaitTeardown();

 private:
  GroupComms* const comms_;
  const std::string why_none_;
  const bool keep_;
  uint64_t disabled_for_ = 0;  // epochs begin at 1
  // The leader's: ids by the ranks they were made for, in this epoch.
  std::map<std::vector<uint32_t>, std::string> made_;
  uint64_t made_in_ = 0;
  std::string id_;
  std::unique_ptr<GroupComm> held_;
  bool failed_ = false;  // it, or joining it
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_COMMUNICATOR_CACHE_H_

// What the leader knows of an exchange by a communicator: how far each rank has come. Says who
// holds up the others. Thread-safe.
#ifndef CKPTD_SERVER_COLLECTIVE_STRAGGLER_DETECTOR_H_
#define CKPTD_SERVER_COLLECTIVE_STRAGGLER_DETECTOR_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/protocol/domain.h"

namespace ckptd {

class StragglerDetector {
 public:
  // `busy`: before its next exchange it is at work by itself, others may have to wait for it.
  void Note(uint32_t rank, uint64_t exchanges, bool busy);
  // That rank has done all of its part: with fewer exchanges than others, where the last steps
  // are not for it.
  void Ended(uint32_t rank);

  // Whether no rank has done any.
  bool Nothing() const;
  // When a rank last went on, or was busy; at first, when this was made.
  Clock::time_point moved() const;
  // DeadlineExceeded RANK_MISSING once nobody has been busy for so long and not all have joined.
  absl::Status CheckJoinTimeout(std::chrono::nanoseconds patience) const;
  // `status`, a wait that has passed its deadline, with those of `ranks` in front that have
  // done fewer exchanges than others; with the fact "rank" where it is one. As it is when none
  // is known to be behind. Rank 0, which sends to who is behind, is never said to be.
  absl::Status NameStragglers(const absl::Status& status, const std::vector<uint32_t>& ranks) const;

 private:
  mutable Mutex mutex_;
  std::map<uint32_t, uint64_t> exchanges_ ABSL_GUARDED_BY(mutex_);  // by rank, so far
  std::set<uint32_t> ended_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point moved_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_STRAGGLER_DETECTOR_H_

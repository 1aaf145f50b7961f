// What the leader knows of an exchange by a communicator: how far each rank has come, and so
// which rank holds up the others. Thread-safe.
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
  // `busy`: the rank works by itself before its next exchange, so others may have to wait for it.
  void Note(uint32_t rank, uint64_t exchanges, bool busy);
  // That rank has done all of its part. It may have fewer exchanges than others, if it receives
  // nothing in the last steps.
  void Ended(uint32_t rank);

  // Whether no rank has done an exchange yet.
  bool Nothing() const;
  // When a rank last made progress or was busy. At first, when this object was made.
  Clock::time_point moved() const;
  // DeadlineExceeded RANK_MISSING if no rank has been busy for `patience` and not all have
  // joined.
  absl::Status CheckJoinTimeout(std::chrono::nanoseconds patience) const;
  // Adds to `status`, the error of a wait, those of `ranks` that have done fewer exchanges than
  // others. If it is one rank, adds the fact "rank". Returns `status` unchanged if no rank is
  // known to be behind. Rank 0 is never named, because it only waits for the ranks it sends to.
  absl::Status NameStragglers(const absl::Status& status, const std::vector<uint32_t>& ranks) const;

 private:
  mutable Mutex mutex_;
  std::map<uint32_t, uint64_t> exchanges_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::set<uint32_t> ended_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point moved_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_STRAGGLER_DETECTOR_H_

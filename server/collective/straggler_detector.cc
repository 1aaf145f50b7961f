#include "server/collective/straggler_detector.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

void StragglerDetector::Note(uint32_t rank, uint64_t exchanges, bool busy) {
  MutexLock lock(mutex_);
  if (busy || exchanges_[rank] != exchanges) moved_ = Clock::now();
  exchanges_[rank] = exchanges;
}

void StragglerDetector::Ended(uint32_t rank) {
  MutexLock lock(mutex_);
  ended_.insert(rank);
}

bool StragglerDetector::Nothing() const {
  MutexLock lock(mutex_);
  return std::all_of(exchanges_.begin(), exchanges_.end(),
                     [](const auto& of_rank) { return of_rank.second == 0; });
}

Clock::time_point StragglerDetector::moved() const {
  MutexLock lock(mutex_);
  return moved_;
}

absl::Status StragglerDetector::CheckJoinTimeout(std::chrono::nanoseconds patience) const {
  if (Clock::now() - moved() < patience) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing,
                   fmt::format("joining the NCCL communicator: all ranks have had their files open "
                               "for {:.0f} s, and not all have joined; look at their logs and GPUs",
                               std::chrono::duration<double>(patience).count()));
}

absl::Status StragglerDetector::NameStragglers(const absl::Status& status,
                                               const std::vector<uint32_t>& ranks) const {
  std::map<uint64_t, std::vector<uint32_t>> by_exchanges;
  bool others_ended = false;
  {
    MutexLock lock(mutex_);
    for (const uint32_t rank : ranks) {
      if (rank == 0) continue;
      if (ended_.count(rank) > 0) {
        others_ended = true;
        continue;
      }
      const auto done = exchanges_.find(rank);
      by_exchanges[done == exchanges_.end() ? 0 : done->second].push_back(rank);
    }
  }
  if (by_exchanges.empty() || (by_exchanges.size() == 1 && !others_ended)) return status;
  const auto& [least, behind] = *by_exchanges.begin();
  // if several are behind, it is not known which one holds up the others
  const bool one = behind.size() == 1;
  const std::string others =
      by_exchanges.size() == 1 ? "ended" : fmt::format("done {}", by_exchanges.rbegin()->first);
  absl::Status named =
      WithContext(status, fmt::format("{} {}: behind at {} exchanges, others have {}",
                                      one ? "rank" : "ranks", fmt::join(behind, ", "), least,
                                      others));
  return one ? WithFact(named, "rank", std::to_string(behind.front())) : named;
}

}  // namespace ckptd

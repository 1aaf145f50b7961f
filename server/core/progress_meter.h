// Keeps the stage times of one load and turns a transfer's counters into the
// Progress that clients see. One thread enters stages; Read is thread-safe.
#ifndef CKPTD_SERVER_CORE_PROGRESS_METER_H_
#define CKPTD_SERVER_CORE_PROGRESS_METER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "server/core/domain.h"
#include "server/core/reading.h"
#include "server/transfer/transfer.h"

namespace ckptd {

class ProgressMeter {
 public:
  // Ends the stage before, if any, and begins this one.
  void Enter(Stage stage);
  // Ends the last stage.
  void Leave();
  // From now on Read reports this transfer: `ranks` and bytes expected, in the
  // order of `counters.done`. `counters` outlives the meter or Detach.
  void Attach(const TransferProgress& counters, std::vector<std::pair<uint32_t, uint64_t>> ranks,
              uint32_t reader);
  void Detach();
  // Bytes that all readers together have to place; else those of Attach.
  void Expect(uint64_t bytes);
  // Ranks that get their bytes through streams.
  void AddStreamed(const std::vector<int32_t>& ranks);
  // What another reader has done.
  void Add(const ReadReport& report);
  Progress Read() const;

 private:
  void CountInto(Progress& progress) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetRate(Progress& progress) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Progress base_ ABSL_GUARDED_BY(mutex_);
  uint64_t expected_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point entered_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point began_ ABSL_GUARDED_BY(mutex_);
  const TransferProgress* counters_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<std::pair<uint32_t, uint64_t>> ranks_ ABSL_GUARDED_BY(mutex_);
  uint32_t reader_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_PROGRESS_METER_H_

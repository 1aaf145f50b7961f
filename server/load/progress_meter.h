// Keeps the stage times of one load and turns what its readers have done into the
// Progress that clients see. One thread enters stages; the rest is thread-safe.
#ifndef CKPTD_SERVER_LOAD_PROGRESS_METER_H_
#define CKPTD_SERVER_LOAD_PROGRESS_METER_H_

#include <cstdint>
#include <map>
#include <optional>

#include "common/base/mutex.h"
#include "server/protocol/domain.h"
#include "server/protocol/reading.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

class ProgressMeter {
 public:
  // Ends the stage before, if any, and begins this one.
  void Enter(Stage stage);
  // Ends the last stage.
  void Leave();
  // Bytes of tensors that each rank gets from all readers together.
  void Expect(std::map<uint32_t, uint64_t> ranks);
  // From now on Read counts this transfer of the process itself: `begun` as Counted
  // takes it. `counters` outlives the meter or Detach, which keeps the last counts.
  void Attach(ReadReport begun, const TransferProgress& counters);
  void Detach();
  // What another reader has done, so far or in the end; older news is ignored.
  void Update(const ReadReport& report);
  Progress Read() const;

 private:
  void Note(const ReadReport& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sum(const std::map<uint32_t, ReadReport>& done, Progress& progress) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  Progress base_ ABSL_GUARDED_BY(mutex_);  // stages alone
  Clock::time_point entered_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, uint64_t> expected_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, ReadReport> done_ ABSL_GUARDED_BY(mutex_);  // by reader
  ReadReport begun_ ABSL_GUARDED_BY(mutex_);
  const TransferProgress* counters_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // When the stage in which bytes move began and ended.
  std::optional<Clock::time_point> began_ ABSL_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_PROGRESS_METER_H_

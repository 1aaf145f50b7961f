// Counts what one daemon does. It is fed through the observers' seams.
#ifndef CKPTD_SERVER_METRICS_RECORDER_H_
#define CKPTD_SERVER_METRICS_RECORDER_H_

#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/metrics/metric.h"
#include "server/protocol/daemon_observer.h"
#include "server/protocol/load_observer.h"

namespace ckptd {

// Thread-safe.
class MetricsRecorder final : public LoadObserver, public DaemonObserver {
 public:
  MetricsRecorder();

  void OnProgress(const std::string& name, const Progress& progress) override;
  void OnEnded(const std::string& name, const absl::Status& status, const Progress& last) override;
  void OnAttached(AttachMode mode, std::chrono::nanoseconds took) override;
  void OnEvicted(uint64_t bytes) override;

  std::vector<Family> Collect() const;

 private:
  Counter loads_;
  Histogram load_seconds_;
  Histogram stage_seconds_;
  Counter load_bytes_;
  Counter read_bytes_;
  Counter sent_bytes_;
  Histogram attach_seconds_;
  Counter evictions_;
  Counter evicted_bytes_;
  mutable Mutex mutex_;
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string running_ ABSL_GUARDED_BY(mutex_);  // the load that moves bytes; empty: none
  int32_t slowest_rank_ ABSL_GUARDED_BY(mutex_) = -1;
  std::optional<double> slow_file_rate_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_METRICS_RECORDER_H_

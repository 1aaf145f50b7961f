#include "server/metrics/recorder.h"

#include <algorithm>
#include <chrono>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/metrics/families.h"
#include "server/metrics/labels.h"

namespace ckptd {
namespace {

const std::vector<double> kLoadBounds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,  2.5,
                                         5,    10,    25,   50,  100,  250, 500};
const std::vector<double> kAttachBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                           0.025,  0.05,    0.1,    0.25,  0.5,    1};

double SecondsOf(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

std::string OutcomeOf(const absl::Status& status) {
  if (status.ok()) return "loaded";
  return ReasonOf(status) == reason::kLoadCancelled ? "cancelled" : "failed";
}

}  // namespace

MetricsRecorder::MetricsRecorder()
    : loads_(metric::kLoads),
      load_seconds_(metric::kLoadSeconds, kLoadBounds),
      stage_seconds_(metric::kStageSeconds, kLoadBounds),
      load_bytes_(metric::kLoadBytes),
      read_bytes_(metric::kReadBytes),
      sent_bytes_(metric::kSentBytes),
      attach_seconds_(metric::kAttachSeconds, kAttachBounds),
      evictions_(metric::kEvictions),
      evicted_bytes_(metric::kEvictedBytes) {
  // A rate needs two samples: the first of them is there before the first event.
  loads_.Add({{"outcome", "loaded"}, {"reason", ""}}, 0);
  for (Counter* const counter : {&load_bytes_, &sent_bytes_, &evictions_, &evicted_bytes_}) {
    counter->Add({}, 0);
  }
  for (const char* const way : {"mapped", "direct", "buffered"}) read_bytes_.Add({{"way", way}}, 0);
}

void MetricsRecorder::OnProgress(const std::string& name, const Progress& progress) {
  if (progress.stage != Stage::kTransferring) return;
  MutexLock lock(mutex_);
  running_ = name;
  if (progress.bytes_per_second > 0) rate_ = progress.bytes_per_second;
  slowest_rank_ = progress.slowest_rank;
  slow_file_rate_.reset();
  if (!progress.slowest_file.path.empty()) slow_file_rate_ = progress.slowest_file.bytes_per_second;
}

void MetricsRecorder::OnEnded(const std::string& name, const absl::Status& status,
                              const Progress& last) {
  const std::string outcome = OutcomeOf(status);
  loads_.Add({{"outcome", outcome}, {"reason", status.ok() ? "" : ReasonOf(status)}}, 1);
  std::chrono::nanoseconds all{0};
  for (const auto& [stage, took] : last.stages) {
    all += took;
    stage_seconds_.Observe({{"stage", LabelOf(stage)}}, SecondsOf(took));
  }
  load_seconds_.Observe({{"outcome", outcome}}, SecondsOf(all));
  load_bytes_.Add({}, static_cast<double>(last.bytes_done));
  sent_bytes_.Add({}, static_cast<double>(last.sent_bytes));
  const ReadCounters& read = last.read;
  const uint64_t others = std::min(read.storage_bytes, read.mapped_bytes + read.direct_bytes);
  read_bytes_.Add({{"way", "mapped"}}, static_cast<double>(read.mapped_bytes));
  read_bytes_.Add({{"way", "direct"}}, static_cast<double>(read.direct_bytes));
  read_bytes_.Add({{"way", "buffered"}}, static_cast<double>(read.storage_bytes - others));
  MutexLock lock(mutex_);
  if (last.bytes_per_second > 0) rate_ = last.bytes_per_second;
  if (running_ != name) return;
  running_.clear();
  slowest_rank_ = -1;
  slow_file_rate_.reset();
}

void MetricsRecorder::OnAttached(AttachMode mode, std::chrono::nanoseconds took) {
  attach_seconds_.Observe({{"mode", LabelOf(mode)}}, SecondsOf(took));
}

void MetricsRecorder::OnEvicted(uint64_t bytes) {
  evictions_.Add({}, 1);
  evicted_bytes_.Add({}, static_cast<double>(bytes));
}

std::vector<Family> MetricsRecorder::Collect() const {
  std::vector<Family> families = {
      loads_.Collect(),      load_seconds_.Collect(), stage_seconds_.Collect(),
      load_bytes_.Collect(), read_bytes_.Collect(),   sent_bytes_.Collect(),
      attach_seconds_.Collect(), evictions_.Collect(),    evicted_bytes_.Collect()};
  MutexLock lock(mutex_);
  families.push_back(GaugeOf(metric::kLoadRate, rate_));
  families.push_back(GaugeOf(metric::kSlowestRank, slowest_rank_));
  families.push_back({metric::kSlowFileRate, {}});
  if (slow_file_rate_.has_value()) families.back() = GaugeOf(metric::kSlowFileRate, *slow_file_rate_);
  return families;
}

}  // namespace ckptd

#include "server/core/progress_meter.h"

#include <algorithm>
#include <set>

namespace ckptd {

void ProgressMeter::Enter(Stage stage) {
  Leave();
  MutexLock lock(mutex_);
  base_.stage = stage;
  entered_ = Clock::now();
}

void ProgressMeter::Leave() {
  MutexLock lock(mutex_);
  if (base_.stage == Stage::kUnspecified) return;
  base_.stages.emplace_back(base_.stage, Clock::now() - entered_);
  base_.stage = Stage::kUnspecified;
}

void ProgressMeter::Attach(const TransferProgress& counters,
                           std::vector<std::pair<uint32_t, uint64_t>> ranks, uint32_t reader) {
  MutexLock lock(mutex_);
  counters_ = &counters;
  ranks_ = std::move(ranks);
  reader_ = reader;
  began_ = Clock::now();
}

void ProgressMeter::Detach() {
  MutexLock lock(mutex_);
  if (counters_ != nullptr) CountInto(base_);
  counters_ = nullptr;
}

void ProgressMeter::Expect(uint64_t bytes) {
  MutexLock lock(mutex_);
  expected_ = bytes;
  base_.bytes_total = bytes;
}

void ProgressMeter::AddStreamed(const std::vector<int32_t>& ranks) {
  MutexLock lock(mutex_);
  std::set<int32_t> all(base_.streamed_ranks.begin(), base_.streamed_ranks.end());
  all.insert(ranks.begin(), ranks.end());
  base_.streamed_ranks.assign(all.begin(), all.end());
}

void ProgressMeter::Add(const ReadReport& report) {
  std::vector<int32_t> streamed;
  for (const ReadReport::Filled& filled : report.filled) {
    if (filled.streamed) streamed.push_back(static_cast<int32_t>(filled.rank));
  }
  AddStreamed(streamed);
  MutexLock lock(mutex_);
  base_.storage_bytes += report.storage_bytes;
  for (const ReadReport::Filled& filled : report.filled) {
    base_.bytes_done += filled.bytes;
    if (filled.rank != report.reader) base_.sent_bytes += filled.bytes;
  }
  SetRate(base_);
  if (base_.bytes_done == base_.bytes_total) base_.slowest_rank = -1;
}

void ProgressMeter::SetRate(Progress& progress) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  progress.bytes_per_second =
      seconds > 0 ? static_cast<double>(progress.bytes_done) / seconds : 0;
}

// On top of what was counted before.
void ProgressMeter::CountInto(Progress& progress) const {
  uint64_t total = 0;
  uint64_t most_missing = 0;
  progress.slowest_rank = -1;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto [rank, bytes] = ranks_[i];
    const uint64_t done = counters_->done[i].load(std::memory_order_relaxed);
    total += bytes;
    progress.bytes_done += done;
    if (rank != reader_) progress.sent_bytes += done;
    if (bytes - done > most_missing) {
      most_missing = bytes - done;
      progress.slowest_rank = static_cast<int32_t>(rank);
    }
  }
  progress.bytes_total = std::max(expected_, total);
  progress.storage_bytes += counters_->storage_bytes.load(std::memory_order_relaxed);
  SetRate(progress);
}

Progress ProgressMeter::Read() const {
  MutexLock lock(mutex_);
  Progress progress = base_;
  if (counters_ != nullptr) CountInto(progress);
  return progress;
}

}  // namespace ckptd

#include "server/core/progress_meter.h"

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

void ProgressMeter::SetStreamed(std::vector<int32_t> ranks) {
  MutexLock lock(mutex_);
  base_.streamed_ranks = std::move(ranks);
}

void ProgressMeter::CountInto(Progress& progress) const {
  progress.bytes_total = 0;
  progress.bytes_done = 0;
  progress.sent_bytes = 0;
  uint64_t most_missing = 0;
  progress.slowest_rank = -1;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto [rank, total] = ranks_[i];
    const uint64_t done = counters_->done[i].load(std::memory_order_relaxed);
    progress.bytes_total += total;
    progress.bytes_done += done;
    if (rank != reader_) progress.sent_bytes += done;
    if (total - done > most_missing) {
      most_missing = total - done;
      progress.slowest_rank = static_cast<int32_t>(rank);
    }
  }
  progress.storage_bytes = counters_->storage_bytes.load(std::memory_order_relaxed);
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  progress.bytes_per_second =
      seconds > 0 ? static_cast<double>(progress.bytes_done) / seconds : 0;
}

Progress ProgressMeter::Read() const {
  MutexLock lock(mutex_);
  Progress progress = base_;
  if (counters_ != nullptr) CountInto(progress);
  return progress;
}

}  // namespace ckptd

#include "server/load/progress_meter.h"

#include <algorithm>
#include <set>
#include <utility>

namespace ckptd {
namespace {

uint64_t BytesOf(const ReadReport& report) {
  uint64_t bytes = 0;
  for (const ReadReport::Filled& filled : report.filled) bytes += filled.bytes;
  return bytes;
}

}  // namespace

void ProgressMeter::Enter(Stage stage) {
  Leave();
  MutexLock lock(mutex_);
  base_.stage = stage;
  entered_ = Clock::now();
  if (stage == Stage::kTransferring) began_ = entered_;
}

void ProgressMeter::Leave() {
  MutexLock lock(mutex_);
  if (base_.stage == Stage::kUnspecified) return;
  const Clock::time_point now = Clock::now();
  if (base_.stage == Stage::kTransferring) ended_ = now;
  base_.stages.emplace_back(base_.stage, now - entered_);
  base_.stage = Stage::kUnspecified;
}

void ProgressMeter::Expect(std::map<uint32_t, uint64_t> ranks) {
  MutexLock lock(mutex_);
  expected_ = std::move(ranks);
}

void ProgressMeter::Attach(ReadReport begun, const TransferProgress& counters) {
  MutexLock lock(mutex_);
  begun_ = std::move(begun);
  counters_ = &counters;
}

void ProgressMeter::Detach() {
  MutexLock lock(mutex_);
  if (counters_ != nullptr) Note(Counted(begun_, *counters_));
  counters_ = nullptr;
}

void ProgressMeter::Update(const ReadReport& report) {
  MutexLock lock(mutex_);
  Note(report);
}

void ProgressMeter::Note(const ReadReport& report) {
  ReadReport& known = done_[report.reader];
  if (report.read.storage_bytes < known.read.storage_bytes || BytesOf(report) < BytesOf(known)) return;
  known = report;
}

void ProgressMeter::Sum(const std::map<uint32_t, ReadReport>& done, Progress& progress) const {
  std::map<uint32_t, uint64_t> missing = expected_;
  std::set<int32_t> streamed;
  for (const auto& [reader, report] : done) {
    progress.read += report.read;
    const FileRate& file = report.slowest_file;
    const bool slower = progress.slowest_file.path.empty() ||
                        file.bytes_per_second < progress.slowest_file.bytes_per_second;
    if (!file.path.empty() && slower) progress.slowest_file = file;
    for (const ReadReport::Filled& filled : report.filled) {
      const auto at = missing.find(filled.rank);
      if (at == missing.end()) continue;
      // No report makes more of a rank than it gets.
      const uint64_t bytes = std::min(filled.bytes, at->second);
      at->second -= bytes;
      progress.bytes_done += bytes;
      if (filled.rank != reader) progress.sent_bytes += bytes;
      if (filled.streamed) streamed.insert(static_cast<int32_t>(filled.rank));
    }
  }
  progress.streamed_ranks.assign(streamed.begin(), streamed.end());
  uint64_t most = 0;
  for (const auto& [rank, bytes] : missing) {
    if (bytes > most) progress.slowest_rank = static_cast<int32_t>(rank);
    most = std::max(most, bytes);
  }
}

Progress ProgressMeter::Read() const {
  MutexLock lock(mutex_);
  Progress progress = base_;
  for (const auto& [rank, bytes] : expected_) progress.bytes_total += bytes;
  std::map<uint32_t, ReadReport> done = done_;
  if (counters_ != nullptr) done[begun_.reader] = Counted(begun_, *counters_);
  Sum(done, progress);
  if (began_.has_value()) {
    const auto until = ended_.value_or(Clock::now());
    const double seconds = std::chrono::duration<double>(until - *began_).count();
    if (seconds > 0) progress.bytes_per_second = static_cast<double>(progress.bytes_done) / seconds;
  }
  return progress;
}

}  // namespace ckptd

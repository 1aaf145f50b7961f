#include "server/transfer/file_times.h"

namespace ckptd {
namespace {

double RateOf(uint64_t bytes, std::chrono::nanoseconds busy) {
  return static_cast<double>(bytes) / std::chrono::duration<double>(busy).count();
}

}  // namespace

FileTimes::Reader::Reader(FileTimes& times) : times_(times) {
  MutexLock lock(times_.mutex_);
  reading_ = times_.readings_.emplace(times_.readings_.end());
}

FileTimes::Reader::~Reader() {
  MutexLock lock(times_.mutex_);
  times_.readings_.erase(reading_);
}

void FileTimes::Reader::Begin(uint32_t file, const std::string& path, Time now) {
  MutexLock lock(times_.mutex_);
  Tally& tally = times_.files_[file];
  if (tally.path.empty()) tally.path = path;
  *reading_ = {file, now, true};
}

void FileTimes::Reader::End(uint64_t bytes, Time now) {
  MutexLock lock(times_.mutex_);
  Tally& tally = times_.files_[reading_->file];
  tally.busy += now - reading_->since;
  tally.bytes += bytes;
  reading_->active = false;
}

const FileTimes::Reading* FileTimes::OldestStalled(Time now) const {
  const Reading* oldest = nullptr;
  for (const Reading& reading : readings_) {
    if (!reading.active || now - reading.since < kStalled) continue;
    if (oldest == nullptr || reading.since < oldest->since) oldest = &reading;
  }
  return oldest;
}

FileRate FileTimes::Slowest(Time now) const {
  MutexLock lock(mutex_);
  if (const Reading* const stalled = OldestStalled(now); stalled != nullptr) {
    const Tally& tally = files_.at(stalled->file);
    return {tally.path, RateOf(tally.bytes, tally.busy + (now - stalled->since))};
  }
  Tally all;
  const Tally* slowest = nullptr;
  for (const auto& [file, tally] : files_) {
    if (tally.busy < kEnough) continue;
    all.busy += tally.busy;
    all.bytes += tally.bytes;
    if (slowest == nullptr || RateOf(tally.bytes, tally.busy) < RateOf(slowest->bytes, slowest->busy)) {
      slowest = &tally;
    }
  }
  if (slowest == nullptr || all.busy == slowest->busy) return {};
  const double rate = RateOf(slowest->bytes, slowest->busy);
  if (2 * rate > RateOf(all.bytes - slowest->bytes, all.busy - slowest->busy)) return {};
  return {slowest->path, rate};
}

}  // namespace ckptd

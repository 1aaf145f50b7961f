#include "common/source/storage_watch.h"

namespace ckptd {

StorageWatch::Call::Call(StorageWatch* watch, std::string_view path, uint64_t offset)
    : watch_(watch),
      path_(path),
      offset_(offset),
      since_(watch == nullptr ? Clock::time_point() : Clock::now()) {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  older_ = watch_->newest_;
  (older_ == nullptr ? watch_->oldest_ : older_->newer_) = this;
  watch_->newest_ = this;
}

StorageWatch::Call::~Call() {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  (older_ == nullptr ? watch_->oldest_ : older_->newer_) = newer_;
  (newer_ == nullptr ? watch_->newest_ : newer_->older_) = older_;
}

std::optional<StorageWatch::Stalled> StorageWatch::Oldest(Clock::duration patience) const {
  MutexLock lock(mutex_);
  if (oldest_ == nullptr) return std::nullopt;
  const Clock::duration time = Clock::now() - oldest_->since_;
  if (time < patience) return std::nullopt;
  return Stalled{std::string(oldest_->path_), oldest_->offset_, time};
}

}  // namespace ckptd

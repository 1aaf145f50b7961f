#include "server/core/key_value.h"

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

absl::StatusOr<std::string> KeyValueStore::Put(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("putting a rendezvous value: keys have 1 to {} bytes and values "
                                 "at most {}, this pair has {} and {}",
                                 kMaxKeyBytes, kMaxValueBytes, key.size(), value.size()));
  }
  MutexLock lock(mutex_);
  const auto at = values_.find(key);
  if (at != values_.end()) return at->second;
  if (values_.size() >= kMaxKeys) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kInvalidRequest,
                     fmt::format("putting rendezvous value {}: the store holds {} keys already; "
                                 "a new epoch empties it",
                                 key, kMaxKeys));
  }
  values_[key] = value;
  changed_.NotifyAll();
  return value;
}

absl::StatusOr<std::string> KeyValueStore::Get(const std::string& key, Deadline deadline) const {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || values_.count(key) > 0;
  });
  if (values_.count(key) > 0) return values_.at(key);
  if (stopped_) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDraining,
                     fmt::format("waiting for rendezvous value {}: this daemon is stopping; ask "
                                 "again when it is back",
                                 key));
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("waiting for rendezvous value {}: no rank has put it in time", key),
                   {{"key", key}});
}

void KeyValueStore::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

void KeyValueStore::Clear() {
  MutexLock lock(mutex_);
  values_.clear();
}

}  // namespace ckptd

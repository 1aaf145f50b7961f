// The part of the catalog that clients look at and wait on.
#include <algorithm>

#include "server/catalog/catalog.h"

namespace ckptd {

absl::StatusOr<CheckpointInfo> Catalog::Get(const std::string& name) const {
  MutexLock lock(mutex_);
  const Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  return InfoOf(*entry);
}

std::vector<CheckpointInfo> Catalog::List() const {
  std::vector<CheckpointInfo> infos;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      if (!IsView(entry)) infos.push_back(InfoOf(entry));
    }
  }
  std::sort(infos.begin(), infos.end(),
            [](const auto& a, const auto& b) { return a.created > b.created; });
  return infos;
}

absl::StatusOr<CheckpointInfo> Catalog::Watch(const std::string& name, uint64_t& seen,
                                              Deadline deadline) const {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Entry* entry = Find(name);
    return stopped_ || entry == nullptr || entry->version != seen;
  });
  const Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  seen = entry->version;
  return InfoOf(*entry);
}

uint64_t Catalog::AddWatcher(const std::string& name) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return 0;
  ++entry->watchers;
  return entry->generation;
}

void Catalog::WatcherLeft(const std::string& name, uint64_t generation,
                          Clock::time_point now) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  // One that was made anew under its name has not seen this watcher come.
  if (entry == nullptr || entry->generation != generation || entry->watchers == 0) return;
  if (--entry->watchers == 0) entry->unwatched = now;
}

void Catalog::WasPolled(const std::string& name) {
  MutexLock lock(mutex_);
  if (Entry* entry = Find(name); entry != nullptr) entry->polled = true;
}

void Catalog::ExtendGrace(const std::string& name, Clock::time_point now) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry != nullptr && entry->unwatched.has_value()) entry->unwatched = now;
}

void Catalog::WatchEnd(const std::string& name, Deadline deadline) const {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Entry* entry = Find(name);
    return stopped_ || entry == nullptr || !LoadsSince(*entry).has_value();
  });
}

void Catalog::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

}  // namespace ckptd

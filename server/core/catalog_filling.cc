// The part of the catalog that knows of the shards of other ranks.
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/core/catalog.h"

namespace ckptd {

CheckpointInfo Catalog::Shown(const Entry& entry) {
  CheckpointInfo info = entry.info;
  if (!entry.filling.has_value()) return info;
  info.state = CheckpointState::kLoading;
  info.progress = entry.filling->progress;
  return info;
}

void Catalog::BeginFilling(const std::string& name, uint64_t since) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kActive) return;
  if (entry->filling.has_value()) return;
  // Its end may overtake the answer that tells us its name.
  if (entry->filled > since) {
    entry->info.failure = entry->unfilled;
    return;
  }
  entry->filling = Entry::Filling{{}, ++ticks_};
  entry->info.failure = absl::OkStatus();
  Touch(*entry);
}

void Catalog::EndFilling(Entry& entry, const absl::Status& why) {
  entry.unfilled = why;
  entry.filled = ++ticks_;
  if (!entry.filling.has_value()) return;
  entry.filling.reset();
  entry.info.failure = why;
  StartKeeping(entry);
  Touch(entry);
  if (why.ok()) return;
  Log(LogLevel::kError, "{}: filling the ranks without it failed: {}", entry.info.name,
      MessageOf(why));
}

bool Catalog::Complete(const std::string& name) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kActive) return false;
  EndFilling(*entry, absl::OkStatus());
  entry->info.failure = absl::OkStatus();
  entry->info.resident_ranks = world_size_;
  return true;
}

void Catalog::NoteResidence(const std::string& name, uint32_t ranks) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kActive) return;
  entry->info.resident_ranks = ranks;
}

std::set<std::string> Catalog::ActiveNames() const {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.info.state == CheckpointState::kActive) names.insert(name);
  }
  return names;
}

}  // namespace ckptd

// The part of the catalog that knows of the shards of other ranks.
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

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
  StartKeeping(OwnerOf(entry));
  Touch(entry);
  if (why.ok()) return;
  Log(LogLevel::kError, "{}: filling the ranks without it failed: {}", entry.info.name,
      MessageOf(why));
}

const Catalog::Entry* Catalog::Unended(const Entry& owner) const {
  if (LoadsSince(owner).has_value()) return &owner;
  for (const auto& [name, entry] : entries_) {
    if (entry.filling.has_value() && entry.info.served_from == owner.info.name) return &entry;
  }
  return nullptr;
}

std::string Catalog::LoadThatNeeds(const std::string& name) const {
  MutexLock lock(mutex_);
  const Entry* const entry = Find(name);
  const Entry* const loading = entry == nullptr ? nullptr : Unended(OwnerOf(*entry));
  return loading == nullptr ? std::string() : loading->info.name;
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

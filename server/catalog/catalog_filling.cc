// The part of the catalog that knows of the shards of other ranks.
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

namespace ckptd {

void Catalog::BeginFilling(const std::string& name, uint64_t since) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kActive) return;
  if (entry->filling.has_value()) return;
  // Its end may overtake the answer that tells us its name.
  if (entry->filled > since) {
    entry->info.failure = entry->unfilled;
    return;
  }
  entry->filling = CatalogEntry::Filling{{}, ++table_.ticks};
  entry->info.failure = absl::OkStatus();
  table_.BumpVersion(*entry);
}

void Catalog::EndFilling(CatalogEntry& entry, const absl::Status& why) {
  entry.unfilled = why;
  entry.filled = ++table_.ticks;
  if (!entry.filling.has_value()) return;
  entry.filling.reset();
  entry.info.failure = why;
  table_.StartKeeping(table_.OwnerOf(entry));
  table_.BumpVersion(entry);
  if (why.ok()) return;
  Log(LogLevel::kError, "{}: filling the ranks without it failed: {}", entry.info.name,
      MessageOf(why));
}

std::string Catalog::LoadThatNeeds(const std::string& name) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* const entry = table_.Find(name);
  const CatalogEntry* const loading =
      entry == nullptr ? nullptr : table_.Unended(table_.OwnerOf(*entry));
  return loading == nullptr ? std::string() : loading->info.name;
}

bool Catalog::Complete(const std::string& name) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kActive) return false;
  EndFilling(*entry, absl::OkStatus());
  entry->info.failure = absl::OkStatus();
  entry->info.resident_ranks = table_.world_size;
  return true;
}

void Catalog::NoteResidence(const std::string& name, uint32_t ranks) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kActive) return;
  entry->info.resident_ranks = ranks;
}

}  // namespace ckptd

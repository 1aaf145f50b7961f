// The part of the catalog that serves one load from the memory of another.
#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

namespace ckptd {

bool Catalog::Serves(const CatalogEntry& entry, const PrepareCall& call) const {
  const LoadRequest& request = call.request;
  const bool exclusive = request.intended == AttachMode::kExclusive;
  if (entry.info.state != CheckpointState::kActive || entry.IsView()) return false;
  if (entry.files != call.index->files || entry.info.kind != KindFor(backend_, request)) return false;
  if (request.digests && !entry.info.digests) return false;
  if (exclusive != (entry.info.intended == AttachMode::kExclusive)) return false;
  const bool same_user = entry.info.loaded_for == UserOf(request.guest);
  // Descriptors of a GPU's memory cannot be for reading alone: users do not share any.
  if (!same_user && !exclusive && entry.info.kind != HandleKind::kMemfd) return false;
  // A client that takes the memory itself must be the first, and nobody else may wait for it. From
  // another user it takes what could as well be evicted for it.
  return !exclusive || (entry.info.leases == 0 && !entry.memory->sealed() &&
                        !entry.Kept(/*but_for=*/"") && (same_user || !entry.info.pinned));
}

// Leases hold the memory, and the table that they were given.
void Catalog::BoundViews(const std::string& owner) {
  size_t views = 0;
  const CatalogEntry* oldest = nullptr;
  for (const auto& [name, entry] : table_.entries) {
    if (entry.info.served_from != owner) continue;
    ++views;
    if (entry.filling.has_value() || entry.watchers > 0) continue;
    if (oldest == nullptr || entry.last_used < oldest->last_used) oldest = &entry;
  }
  if (views < kMostViews || oldest == nullptr) return;
  const std::string name = oldest->info.name;
  Log(LogLevel::kInfo, "{}: forgotten, {} has {} views", name, owner, views);
  table_.Erase(name);
  table_.changed.NotifyAll();
}

std::vector<Catalog::Resident> Catalog::MayServe(const PrepareCall& call) const {
  std::vector<std::pair<std::chrono::system_clock::time_point, Resident>> found;
  {
    MutexLock lock(table_.mutex);
    for (const auto& [name, entry] : table_.entries) {
      if (!Serves(entry, call)) continue;
      found.push_back(
          {entry.info.created, {name, entry.generation, entry.asked.request, entry.shard}});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Resident> residents;
  for (auto& [created, resident] : found) residents.push_back(std::move(resident));
  return residents;
}

absl::StatusOr<bool> Catalog::PublishView(const PrepareCall& call, const Resident& owner,
                                          Shard shard) {
  MutexLock lock(table_.mutex);
  CatalogEntry* const entry = table_.Find(call.name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) {
    return CheckpointNotFound(call.name);
  }
  CatalogEntry* const memory = table_.Find(owner.name);
  if (memory == nullptr || memory->generation != owner.generation || !Serves(*memory, call)) {
    return false;
  }
  BoundViews(owner.name);
  const uint64_t bytes = shard.plan.tensor_bytes;
  entry->NotePlan(call, std::move(shard));
  entry->memory = memory->memory;
  entry->info.served_from = owner.name;
  entry->info.digests = memory->info.digests;
  entry->info.state = CheckpointState::kActive;
  entry->info.activated = std::chrono::system_clock::now();
  NoteOthers(call, *entry);
  entry->info.progress = {};
  entry->info.progress.bytes_total = entry->info.progress.bytes_done = bytes;
  // The memory is kept for clients that waited for the view.
  memory->kept_for.merge(entry->kept_for);
  entry->kept_for.clear();
  table_.StartKeeping(*memory);
  entry->wanted.reset();
  table_.BumpVersion(*entry);
  table_.BumpVersion(*memory);
  return true;
}

// Other ranks may have to be filled yet, and that may fail.
void Catalog::NoteOthers(const PrepareCall& call, CatalogEntry& view) {
  // By rank, each trainer waits for its own, and nobody tells of the others.
  if (!IsRankForm(call.request) && table_.world_size > 1) {
    view.filling = CatalogEntry::Filling{view.info.progress, ++table_.ticks};
    return;
  }
  view.info.resident_ranks = table_.world_size;
  view.filled = ++table_.ticks;
}

}  // namespace ckptd

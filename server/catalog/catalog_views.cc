// The part of the catalog that serves one load from the memory of another.
#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

namespace ckptd {

Catalog::Entry& Catalog::OwnerOf(Entry& entry) {
  Entry* const owner = IsView(entry) ? Find(entry.info.served_from) : nullptr;
  return owner == nullptr ? entry : *owner;
}

const Catalog::Entry& Catalog::OwnerOf(const Entry& entry) const {
  const Entry* const owner = IsView(entry) ? Find(entry.info.served_from) : nullptr;
  return owner == nullptr ? entry : *owner;
}

CheckpointInfo Catalog::InfoOf(const Entry& entry) const {
  CheckpointInfo info = Shown(entry);
  const Entry& owner = OwnerOf(entry);
  info.leases = owner.info.leases;
  info.pinned = owner.info.pinned;
  return info;
}

bool Catalog::Serves(const Entry& entry, const PrepareCall& call) const {
  const LoadRequest& request = call.request;
  const bool exclusive = request.intended == AttachMode::kExclusive;
  if (entry.info.state != CheckpointState::kActive || IsView(entry)) return false;
  if (entry.files != call.index->files || entry.info.kind != KindFor(request)) return false;
  if (request.digests && !entry.info.digests) return false;
  if (exclusive != (entry.info.intended == AttachMode::kExclusive)) return false;
  // Whoever wants the memory itself must be the first, and nobody else wait for it.
  return !exclusive || (entry.info.leases == 0 && !entry.memory->sealed() &&
                        !Kept(entry, /*but_for=*/""));
}

// Leases hold the memory, and the table that they were given.
void Catalog::BoundViews(const std::string& owner) {
  size_t views = 0;
  const Entry* oldest = nullptr;
  for (const auto& [name, entry] : entries_) {
    if (entry.info.served_from != owner) continue;
    ++views;
    if (entry.filling.has_value() || entry.watchers > 0) continue;
    if (oldest == nullptr || entry.last_used < oldest->last_used) oldest = &entry;
  }
  if (views < kMostViews || oldest == nullptr) return;
  const std::string name = oldest->info.name;
  Log(LogLevel::kInfo, "{}: forgotten, {} has {} views", name, owner, views);
  Erase(name);
  changed_.NotifyAll();
}

std::vector<Catalog::Resident> Catalog::MayServe(const PrepareCall& call) const {
  std::vector<std::pair<std::chrono::system_clock::time_point, Resident>> found;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      if (!Serves(entry, call)) continue;
      found.push_back({entry.info.created, {name, entry.generation, entry.asked.request, entry.shard}});
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
  MutexLock lock(mutex_);
  Entry* const entry = Find(call.name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) {
    return CheckpointNotFound(call.name);
  }
  Entry* const memory = Find(owner.name);
  if (memory == nullptr || memory->generation != owner.generation || !Serves(*memory, call)) {
    return false;
  }
  BoundViews(owner.name);
  const uint64_t bytes = shard.plan.tensor_bytes;
  NotePlan(call, std::move(shard), *entry);
  entry->memory = memory->memory;
  entry->info.served_from = owner.name;
  entry->info.digests = memory->info.digests;
  entry->info.state = CheckpointState::kActive;
  entry->info.activated = std::chrono::system_clock::now();
  NoteOthers(call, *entry);
  entry->info.progress = {};
  entry->info.progress.bytes_total = entry->info.progress.bytes_done = bytes;
  // Who waited for the view is kept its memory.
  memory->kept_for.merge(entry->kept_for);
  entry->kept_for.clear();
  StartKeeping(*memory);
  entry->wanted.reset();
  Touch(*entry);
  Touch(*memory);
  return true;
}

// Other ranks may have to be filled yet, and that may fail.
void Catalog::NoteOthers(const PrepareCall& call, Entry& view) {
  // By rank, each trainer waits for its own, and nobody tells of the others.
  if (!IsRankForm(call.request) && world_size_ > 1) {
    view.filling = Entry::Filling{view.info.progress, ++ticks_};
    return;
  }
  view.info.resident_ranks = world_size_;
  view.filled = ++ticks_;
}

void Catalog::Erase(const std::string& name) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const bool goes = at->first == name || at->second.info.served_from == name;
    if (goes) NoteGone(at->first);
    at = goes ? entries_.erase(at) : std::next(at);
  }
}

}  // namespace ckptd

// The part of the catalog that serves one load from the memory of another.
#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/core/catalog.h"

namespace ckptd {

Catalog::Entry& Catalog::OwnerOf(Entry& entry) {
  Entry* const owner = IsView(entry) ? Find(entry.info.served_from) : nullptr;
  return owner == nullptr ? entry : *owner;
}

CheckpointInfo Catalog::InfoOf(const Entry& entry) const {
  CheckpointInfo info = Shown(entry);
  const Entry* const owner = IsView(entry) ? Find(entry.info.served_from) : nullptr;
  if (owner == nullptr) return info;
  info.leases = owner->info.leases;
  info.pinned = owner->info.pinned;
  return info;
}

bool Catalog::Serves(const Entry& entry, const PrepareCall& call) const {
  const LoadRequest& request = call.request;
  const bool exclusive = request.intended == AttachMode::kExclusive;
  if (entry.info.state != CheckpointState::kActive || IsView(entry)) return false;
  if (entry.files != call.index->files || entry.info.kind != KindFor(request)) return false;
  if (request.digests && !entry.info.digests) return false;
  if (exclusive != (entry.info.intended == AttachMode::kExclusive)) return false;
  // Whoever wants the memory itself must be the first.
  return !exclusive || (entry.info.leases == 0 && !entry.memory->sealed());
}

std::vector<Catalog::Resident> Catalog::MayServe(const PrepareCall& call) const {
  std::vector<std::pair<std::chrono::system_clock::time_point, Resident>> found;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      if (!Serves(entry, call)) continue;
      found.push_back({entry.info.created, {name, entry.generation, entry.request, entry.shard}});
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
  const uint64_t bytes = shard.plan.tensor_bytes;
  NotePlan(call, std::move(shard), *entry);
  entry->memory = memory->memory;
  entry->info.served_from = owner.name;
  entry->info.digests = memory->info.digests;
  entry->info.state = CheckpointState::kActive;
  entry->info.activated = std::chrono::system_clock::now();
  entry->info.progress = {};
  entry->info.progress.bytes_total = entry->info.progress.bytes_done = bytes;
  entry->info.resident_ranks = world_size_;  // what is published on one rank is so on all
  entry->filled = ++ticks_;
  // Who waited for the view is kept its memory.
  memory->kept_for.merge(entry->kept_for);
  entry->kept_for.clear();
  StartKeeping(*memory);
  entry->wanted.reset();
  Touch(*entry);
  Touch(*memory);
  return true;
}

void Catalog::Erase(const std::string& name) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const bool goes = at->first == name || at->second.info.served_from == name;
    if (goes) NoteGone(at->first);
    at = goes ? entries_.erase(at) : std::next(at);
  }
}

}  // namespace ckptd

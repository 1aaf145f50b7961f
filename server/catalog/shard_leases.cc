#include "server/catalog/shard_leases.h"

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Whether an EXCLUSIVE client can have it; `name` as that asked for it.
absl::Status CheckTakeable(const CatalogEntry& entry, const std::string& name) {
  if (entry.info.leases > 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                     fmt::format("acquiring {} EXCLUSIVE: {} open on it; release what is held, or "
                                 "acquire it SHARED or PRIVATE",
                                 name, LeasesText(entry.info.leases)),
                     {{"checkpoint", name}});
  }
  if (entry.memory->sealed()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kExclusiveNeedsCopy,
                     fmt::format("acquiring {} EXCLUSIVE: its memory is sealed because it was "
                                 "loaded for, or lent to, readers; unload it (`ckptctl unload "
                                 "{}`) and load it with intended mode EXCLUSIVE, or acquire it "
                                 "PRIVATE",
                                 name, name),
                     {{"checkpoint", name}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ShardLeases::Held> ShardLeases::Hold(const std::string& name, AttachMode mode,
                                                    const std::string& request_id) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  if (entry->info.state != CheckpointState::kActive) return NotActive("acquiring", entry->info);
  CatalogEntry* const asked = entry;
  const std::shared_ptr<const Shard> shard = entry->shard;
  entry = &table_.OwnerOf(*entry);
  if (entry->exclusive) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                     fmt::format("acquiring {}: a client is taking it EXCLUSIVE; wait until its "
                                 "lease ends (`ckptctl leases`), which is within 30 s where it does "
                                 "not come for it, or unload it with --force and load again",
                                 name),
                     {{"checkpoint", name}});
  }
  if (mode == AttachMode::kExclusive) CKPTD_RETURN_IF_ERROR(CheckTakeable(*entry, name));
  entry->kept_for.erase(request_id);
  ++entry->info.leases;
  entry->exclusive = mode == AttachMode::kExclusive;
  if (asked != entry) table_.BumpVersion(*asked);
  table_.BumpVersion(*entry);
  return Held{entry->memory, shard, entry->generation, entry->info.name};
}

void ShardLeases::Release(const std::string& name, uint64_t generation) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->generation != generation || entry->info.leases == 0) return;
  --entry->info.leases;
  entry->exclusive = false;
  table_.BumpVersion(*entry);
}

void ShardLeases::MarkTaken(const std::string& name, uint64_t generation) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->generation != generation) return;
  for (auto& [other, view] : table_.entries) {
    if (view.info.served_from == name) Take(view);
  }
  Take(*entry);
}

void ShardLeases::Take(CatalogEntry& entry) {
  entry.info.state = CheckpointState::kTaken;
  entry.info.slab_bytes = 0;
  entry.info.served_from.clear();
  entry.filling.reset();
  entry.memory = nullptr;
  table_.BumpVersion(entry);
}

absl::StatusOr<ShardLeases::Held> ShardLeases::Look(const std::string& name) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  if (entry->info.state != CheckpointState::kActive) return NotActive("verifying", entry->info);
  const CatalogEntry& owner = table_.OwnerOf(*entry);
  return Held{entry->memory, entry->shard, entry->generation, owner.info.name, owner.shard};
}

absl::StatusOr<std::shared_ptr<const Shard>> ShardLeases::Table(const std::string& name) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  const bool readable = entry->info.state == CheckpointState::kActive ||
                        entry->info.state == CheckpointState::kTaken;
  if (!readable) return NotActive("listing the tensors of", entry->info);
  return entry->shard;
}

bool ShardLeases::KeepFor(const std::string& name, const std::string& request_id) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return false;
  CatalogEntry& owner = table_.OwnerOf(*entry);
  const auto now = Clock::now();
  std::erase_if(owner.kept_for, [now](const auto& kept) {
    return kept.second.has_value() && *kept.second <= now;
  });
  // A client that comes then finds it kept for all the others.
  if (owner.kept_for.size() >= kMostKept && owner.kept_for.count(request_id) == 0) return true;
  owner.kept_for[request_id].reset();
  table_.StartKeeping(owner);
  return true;
}

void ShardLeases::KeepNoMore(const std::string& name, const std::string& request_id) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry != nullptr) table_.OwnerOf(*entry).kept_for.erase(request_id);
}

}  // namespace ckptd

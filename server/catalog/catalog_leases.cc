// The part of the catalog that lends shards and takes them back.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

namespace ckptd {
namespace {

std::string LeasesText(uint32_t count) {
  return count == 1 ? "1 lease is" : fmt::format("{} leases are", count);
}

// Why a checkpoint in this state is not there for `doing`, "unloading" it for example.
// `otherwise`: what can be done about one that is LOADING, but wait.
absl::Status NotActive(std::string_view doing, const CheckpointInfo& info,
                       std::string_view otherwise = "") {
  const Facts facts = {{"checkpoint", info.name}, {"state", std::string(NameOf(info.state))}};
  switch (info.state) {
    case CheckpointState::kFailed:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLoadFailed,
                       fmt::format("{} {}: its load failed: {}", doing, info.name,
                                   MessageOf(info.failure)),
                       facts);
    case CheckpointState::kTaken:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                       fmt::format("{} {}: an EXCLUSIVE client took its memory; load the source "
                                   "again",
                                   doing, info.name),
                       facts);
    default:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotActive,
                       fmt::format("{} {}: it is {} ({}); wait until it has ended, `ckptctl watch "
                                   "{}` follows it{}",
                                   doing, info.name, NameOf(info.state),
                                   NameOf(info.progress.stage), info.name, otherwise),
                       facts);
  }
}

}  // namespace

absl::Status Catalog::CheckTakeable(const Entry& entry, const std::string& name) {
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

absl::StatusOr<Catalog::Held> Catalog::Hold(const std::string& name, AttachMode mode,
                                            const std::string& request_id) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  if (entry->info.state != CheckpointState::kActive) return NotActive("acquiring", entry->info);
  Entry* const asked = entry;
  const std::shared_ptr<const Shard> shard = entry->shard;
  entry = &OwnerOf(*entry);
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
  if (asked != entry) Touch(*asked);
  Touch(*entry);
  return Held{entry->memory, shard, entry->generation, entry->info.name};
}

void Catalog::Release(const std::string& name, uint64_t generation) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr || entry->generation != generation || entry->info.leases == 0) return;
  --entry->info.leases;
  entry->exclusive = false;
  Touch(*entry);
}

void Catalog::MarkTaken(const std::string& name, uint64_t generation) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr || entry->generation != generation) return;
  for (auto& [other, view] : entries_) {
    if (view.info.served_from == name) Take(view);
  }
  Take(*entry);
}

void Catalog::Take(Entry& entry) {
  entry.info.state = CheckpointState::kTaken;
  entry.info.slab_bytes = 0;
  entry.info.served_from.clear();
  entry.filling.reset();
  entry.memory = nullptr;
  Touch(entry);
}

absl::StatusOr<Catalog::Held> Catalog::Look(const std::string& name) const {
  MutexLock lock(mutex_);
  const Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  if (entry->info.state != CheckpointState::kActive) return NotActive("verifying", entry->info);
  const Entry& owner = OwnerOf(*entry);
  return Held{entry->memory, entry->shard, entry->generation, owner.info.name, owner.shard};
}

absl::StatusOr<std::shared_ptr<const Shard>> Catalog::Table(const std::string& name) const {
  MutexLock lock(mutex_);
  const Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  const bool readable = entry->info.state == CheckpointState::kActive ||
                        entry->info.state == CheckpointState::kTaken;
  if (!readable) return NotActive("listing the tensors of", entry->info);
  return entry->shard;
}

absl::StatusOr<uint64_t> Catalog::Unload(const std::string& name, bool force, bool idle) {
  std::shared_ptr<ShardMemory> freed;  // destroyed after the lock
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  entry = &OwnerOf(*entry);
  // Who forces it has cancelled the load of a view, or wants its memory before that ends.
  const Entry* const loading = Unended(*entry);
  if (loading != nullptr && (loading == entry || !force)) {
    return NotActive("unloading", InfoOf(*loading), "; or force it, which cancels the load on every rank");
  }
  if (entry->info.leases > 0 && !force) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                     fmt::format("unloading {}: {} open on it; end what holds it, or force it "
                                 "(clients keep what they have mapped)",
                                 name, LeasesText(entry->info.leases)),
                     {{"checkpoint", name}});
  }
  if (idle && Kept(*entry) && !force) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                     fmt::format("unloading {} as idle: a client that has loaded it has yet to "
                                 "acquire it; try again in {} s, or unload it by name",
                                 name, timing::kKeptForClient.count()),
                     {{"checkpoint", name}});
  }
  const uint64_t bytes = entry->memory == nullptr ? 0 : entry->info.slab_bytes;
  freed = std::move(entry->memory);
  Erase(std::string(entry->info.name));
  changed_.NotifyAll();
  Log(LogLevel::kInfo, "{}: unloaded, {:.1f} MB", name, static_cast<double>(bytes) / 1e6);
  return bytes;
}

absl::StatusOr<CheckpointInfo> Catalog::Pin(const std::string& name, bool pinned) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  Entry& owner = OwnerOf(*entry);
  owner.info.pinned = pinned;
  Touch(owner);
  return InfoOf(*entry);
}

bool Catalog::KeepFor(const std::string& name, const std::string& request_id) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return false;
  Entry& owner = OwnerOf(*entry);
  const auto now = Clock::now();
  std::erase_if(owner.kept_for, [now](const auto& kept) {
    return kept.second.has_value() && *kept.second <= now;
  });
  // Whoever comes then finds it kept for all the others.
  if (owner.kept_for.size() >= kMostKept && owner.kept_for.count(request_id) == 0) return true;
  owner.kept_for[request_id].reset();
  StartKeeping(owner);
  return true;
}

void Catalog::KeepNoMore(const std::string& name, const std::string& request_id) {
  MutexLock lock(mutex_);
  if (Entry* entry = Find(name); entry != nullptr) OwnerOf(*entry).kept_for.erase(request_id);
}

void Catalog::StartKeeping(Entry& owner) const {
  if (Unended(owner) != nullptr) return;
  for (auto& [request, until] : owner.kept_for) {
    if (until.has_value()) continue;
    until = Clock::now() + std::chrono::duration_cast<Clock::duration>(kept_);
  }
}

bool Catalog::Kept(const Entry& entry, std::optional<std::string_view> but_for) {
  const auto now = Clock::now();
  return std::any_of(entry.kept_for.begin(), entry.kept_for.end(), [&](const auto& kept) {
    return kept.first != but_for && (!kept.second.has_value() || *kept.second > now);
  });
}

std::vector<ResidentCheckpoint> Catalog::Residents() const {
  MutexLock lock(mutex_);
  std::vector<ResidentCheckpoint> residents;
  for (const auto& [name, entry] : entries_) {
    if (entry.info.state != CheckpointState::kActive) continue;
    residents.push_back({name, entry.asked.load_key, entry.files, entry.request_digests});
  }
  return residents;
}

}  // namespace ckptd

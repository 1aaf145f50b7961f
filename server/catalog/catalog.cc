#include "server/catalog/catalog.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Ended entries (FAILED, TAKEN) kept so that late clients can read the reason.
constexpr size_t kEndedKept = 32;

}  // namespace

Catalog::Catalog(MemoryBackend& backend, uint32_t rank, uint32_t world_size)
    : backend_(backend),
      table_(rank, world_size),
      watchers_(table_),
      leases_(table_),
      eviction_(table_, backend) {}

std::optional<Catalog::Match> Catalog::FindMatch(const IdentifiedRequest& asked) const {
  const bool exclusive = asked.request.intended == AttachMode::kExclusive;
  MutexLock lock(table_.mutex);
  const CatalogEntry* best = nullptr;
  for (const auto& [name, entry] : table_.entries) {
    const bool active = entry.info.state == CheckpointState::kActive;
    // A request without digests is served by an ACTIVE checkpoint that has them.
    const uint64_t has = entry.asked.digest;
    if (has != asked.digest && (!active || has != asked.digest_with_digests)) continue;
    if (!active && entry.info.state != CheckpointState::kLoading) continue;
    // Memory that has been lent to readers cannot be handed over any more.
    if (active && exclusive && entry.memory->sealed()) continue;
    if (best == nullptr || entry.info.created > best->info.created) best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  return Match{best->info.name, best->info.state == CheckpointState::kActive, best->files,
               best->Gathers(), best->asked};
}

std::vector<std::string> Catalog::NearMiss(const LoadRequest& request) const {
  LoadRequest nearest;
  {
    MutexLock lock(table_.mutex);
    const CatalogEntry* best = nullptr;
    for (const auto& [name, entry] : table_.entries) {
      if (entry.asked.request.source != request.source) continue;
      if (entry.info.loaded_for != UserOf(request.guest)) continue;
      if (entry.info.state != CheckpointState::kActive) continue;
      if (best == nullptr || entry.info.created > best->info.created) best = &entry;
    }
    if (best == nullptr) return {};
    nearest = best->asked.request;
  }
  std::vector<std::string> fields = DifferingFields(request, nearest);
  if (fields.empty()) fields.emplace_back("files");
  return fields;
}

uint64_t Catalog::Tick() const {
  MutexLock lock(table_.mutex);
  return table_.ticks;
}

void Catalog::Begin(const std::string& name, const IdentifiedRequest& asked, uint64_t since) {
  const LoadRequest& request = asked.request;
  MutexLock lock(table_.mutex);
  const CatalogEntry* existing = table_.Find(name);
  if (existing != nullptr) {
    const CheckpointState state = existing->info.state;
    if (state == CheckpointState::kLoading || state == CheckpointState::kActive) return;
    if (state == CheckpointState::kFailed && existing->last_used > since) return;
  }
  CatalogEntry entry;
  entry.info.name = name;
  entry.info.kind = KindFor(backend_, request);
  entry.info.rank = table_.rank;
  entry.info.world_size = table_.world_size;
  entry.info.created = std::chrono::system_clock::now();
  entry.asked = asked;
  entry.NoteRequest();
  entry.generation = ++table_.ticks;
  if (const auto why = table_.tombstones.Take(name, since); why.has_value()) {
    entry.info.state = CheckpointState::kFailed;
    entry.info.failure = *why;
  }
  Log(LogLevel::kInfo, "{}: loading {}, layout {}", name, request.source, entry.info.layout);
  table_.entries[name] = std::move(entry);
  table_.BumpVersion(table_.entries[name]);
  Prune();
}

void Catalog::UpdateProgress(const std::string& name, const Progress& progress) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return;
  if (entry->filling.has_value()) {
    entry->filling->progress = progress;
  } else if (entry->info.state == CheckpointState::kLoading) {
    entry->info.progress = progress;
  } else {
    return;
  }
  table_.BumpVersion(*entry);
}

void Catalog::Prune() {
  std::vector<std::pair<uint64_t, std::string>> ended;
  for (const auto& [name, entry] : table_.entries) {
    const bool done = entry.info.state == CheckpointState::kFailed ||
                      entry.info.state == CheckpointState::kTaken;
    if (done && entry.info.leases == 0) ended.emplace_back(entry.last_used, name);
  }
  if (ended.size() <= kEndedKept) return;
  std::sort(ended.begin(), ended.end());
  for (size_t i = 0; i + kEndedKept < ended.size(); ++i) table_.entries.erase(ended[i].second);
}

bool Catalog::HasActive(const std::string& name, uint64_t rank_digest) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* entry = table_.Find(name);
  return entry != nullptr && entry->info.state == CheckpointState::kActive &&
         entry->shard->plan.digest == rank_digest;
}

std::shared_ptr<ShardMemory> Catalog::LoadingMemory(const std::string& name) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) return nullptr;
  return entry->memory;
}

std::shared_ptr<const Shard> Catalog::LoadingShard(const std::string& name) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) return nullptr;
  return entry->shard;
}

absl::Status Catalog::Publish(const CommitCall& call) {
  const std::shared_ptr<ShardMemory> memory = LoadingMemory(call.name);
  if (memory == nullptr) return CheckpointNotFound(call.name);
  KeptCheckpoint kept;
  {
    MutexLock lock(table_.mutex);
    const CatalogEntry* entry = table_.Find(call.name);
    if (entry == nullptr || entry->shard == nullptr) return CheckpointNotFound(call.name);
    kept = WhatIsKept(*entry);
  }
  Shard shard = *kept.shard;
  shard.digests = call.digests;
  kept.shard = std::make_shared<Shard>(std::move(shard));
  kept.info.activated = std::chrono::system_clock::now();
  memory->ReleaseStaging();
  if (kept.info.intended != AttachMode::kExclusive) CKPTD_RETURN_IF_ERROR(memory->Seal());
  // Before clients can see it. So whatever they have seen ACTIVE is kept, and nobody has it yet.
  if (keeper_ != nullptr) keeper_->Keep(kept, memory);
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(call.name);
  // It may have failed, and one of the same name have begun, which has no memory yet or other.
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading ||
      entry->memory != memory) {
    return CheckpointNotFound(call.name);
  }
  entry->shard = kept.shard;
  entry->info.state = CheckpointState::kActive;
  entry->info.activated = kept.info.activated;
  entry->info.progress = call.progress;
  entry->info.resident_ranks = table_.world_size;  // what is published on one rank is so on all
  entry->filled = ++table_.ticks;
  table_.StartKeeping(*entry);
  table_.BumpVersion(*entry);
  return absl::OkStatus();
}

KeptCheckpoint Catalog::WhatIsKept(const CatalogEntry& entry) {
  return {entry.info, entry.asked.request, entry.files, entry.request_digests, entry.shard};
}

void Catalog::Restore(KeptCheckpoint kept, std::shared_ptr<ShardMemory> memory) {
  CatalogEntry entry;
  entry.asked = std::move(kept.request);
  entry.info = std::move(kept.info);
  entry.info.kind = memory->kind();
  entry.info.rank = table_.rank;
  entry.info.world_size = table_.world_size;
  entry.NoteRequest();
  entry.files = std::move(kept.files);
  entry.request_digests = std::move(kept.request_digests);
  entry.memory = std::move(memory);
  entry.NoteShard(std::move(kept.shard));
  entry.info.state = CheckpointState::kActive;
  entry.info.progress.bytes_total = entry.info.progress.bytes_done = entry.shard->plan.tensor_bytes;
  MutexLock lock(table_.mutex);
  entry.info.resident_ranks = 1;  // until the leader says more
  entry.generation = ++table_.ticks;
  entry.filled = entry.generation;
  CatalogEntry& there = table_.entries[entry.info.name] = std::move(entry);
  table_.BumpVersion(there);
}

absl::StatusOr<CheckpointInfo> Catalog::Get(const std::string& name) const {
  MutexLock lock(table_.mutex);
  const CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  return table_.InfoOf(*entry);
}

std::vector<CheckpointInfo> Catalog::List(const std::optional<Caller>& guest) const {
  std::vector<CheckpointInfo> infos;
  {
    MutexLock lock(table_.mutex);
    for (const auto& [name, entry] : table_.entries) {
      // A guest is not shown whose memory a view of its own lies in.
      const bool listed = guest.has_value() ? entry.info.loaded_for == guest->uid : !entry.IsView();
      if (listed) infos.push_back(table_.InfoOf(entry));
    }
  }
  std::sort(infos.begin(), infos.end(),
            [](const auto& a, const auto& b) { return a.created > b.created; });
  return infos;
}

void Catalog::Stop() {
  MutexLock lock(table_.mutex);
  table_.stopped = true;
  table_.changed.NotifyAll();
}

std::set<std::string> Catalog::ActiveNames() const {
  MutexLock lock(table_.mutex);
  std::set<std::string> names;
  for (const auto& [name, entry] : table_.entries) {
    if (entry.info.state == CheckpointState::kActive) names.insert(name);
  }
  return names;
}

absl::StatusOr<uint64_t> Catalog::Unload(const std::string& name, bool force, bool idle) {
  std::shared_ptr<ShardMemory> freed;
  const absl::StatusOr<uint64_t> bytes = TakeMemory(name, force, idle, freed);
  // Clients may still hold it, but it must not come back.
  if (freed != nullptr) freed->StopKeeping();
  return bytes;
}

absl::StatusOr<uint64_t> Catalog::TakeMemory(const std::string& name, bool force, bool idle,
                                             std::shared_ptr<ShardMemory>& freed) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  entry = &table_.OwnerOf(*entry);
  // A client that forces it has cancelled the load of a view, or wants its memory before that ends.
  const CatalogEntry* const loading = table_.Unended(*entry);
  if (loading != nullptr && (loading == entry || !force)) {
    return NotActive("unloading", table_.InfoOf(*loading),
                     "; or force it, which cancels the load on every rank");
  }
  if (entry->info.leases > 0 && !force) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                     fmt::format("unloading {}: {} open on it; end what holds it, or force it "
                                 "(clients keep what they have mapped)",
                                 name, LeasesText(entry->info.leases)),
                     {{"checkpoint", name}});
  }
  if (idle && entry->Kept() && !force) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                     fmt::format("unloading {} as idle: a client that has loaded it has yet to "
                                 "acquire it; try again in {} s, or unload it by name",
                                 name, timing::kKeptForClient.count()),
                     {{"checkpoint", name}});
  }
  const uint64_t bytes = entry->memory == nullptr ? 0 : entry->info.slab_bytes;
  freed = std::move(entry->memory);
  table_.Erase(std::string(entry->info.name));
  table_.changed.NotifyAll();
  Log(LogLevel::kInfo, "{}: unloaded, {:.1f} MB", name, static_cast<double>(bytes) / 1e6);
  return bytes;
}

absl::StatusOr<CheckpointInfo> Catalog::Pin(const std::string& name, bool pinned) {
  KeptCheckpoint kept;
  std::shared_ptr<ShardMemory> memory;
  CheckpointInfo info;
  {
    MutexLock lock(table_.mutex);
    CatalogEntry* entry = table_.Find(name);
    if (entry == nullptr) return CheckpointNotFound(name);
    CatalogEntry& owner = table_.OwnerOf(*entry);
    owner.info.pinned = pinned;
    table_.BumpVersion(owner);
    info = table_.InfoOf(*entry);
    if (owner.info.state == CheckpointState::kActive) memory = owner.memory;
    if (memory != nullptr) kept = WhatIsKept(owner);
  }
  if (keeper_ != nullptr && memory != nullptr) keeper_->Keep(kept, memory);
  return info;
}

std::vector<ResidentCheckpoint> Catalog::Residents() const {
  MutexLock lock(table_.mutex);
  std::vector<ResidentCheckpoint> residents;
  for (const auto& [name, entry] : table_.entries) {
    if (entry.info.state != CheckpointState::kActive) continue;
    residents.push_back({name, entry.asked.load_key, entry.files, entry.request_digests});
  }
  return residents;
}

}  // namespace ckptd

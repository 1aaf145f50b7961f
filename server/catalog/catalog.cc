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

absl::Status CheckpointNotFound(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, reason::kCheckpointNotFound,
                   fmt::format("looking up {}: this daemon holds no such checkpoint (it may have "
                               "been unloaded or evicted); load it again, or list what is there",
                               name),
                   {{"checkpoint", name}});
}

Catalog::Catalog(MemoryBackend& backend, uint32_t rank, uint32_t world_size)
    : backend_(backend), rank_(rank), world_size_(world_size) {}

Catalog::Entry* Catalog::Find(const std::string& name) {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second;
}

const Catalog::Entry* Catalog::Find(const std::string& name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second;
}

void Catalog::Touch(Entry& entry) {
  ++entry.version;
  entry.last_used = ++ticks_;
  changed_.NotifyAll();
}

std::optional<Catalog::Match> Catalog::FindMatch(const IdentifiedRequest& asked) const {
  const bool exclusive = asked.request.intended == AttachMode::kExclusive;
  MutexLock lock(mutex_);
  const Entry* best = nullptr;
  for (const auto& [name, entry] : entries_) {
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
               Gathers(*best), best->asked};
}

std::vector<std::string> Catalog::NearMiss(const LoadRequest& request) const {
  LoadRequest nearest;
  {
    MutexLock lock(mutex_);
    const Entry* best = nullptr;
    for (const auto& [name, entry] : entries_) {
      if (entry.asked.request.source != request.source) continue;
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
  MutexLock lock(mutex_);
  return ticks_;
}

void Catalog::Begin(const std::string& name, const IdentifiedRequest& asked, uint64_t since) {
  const LoadRequest& request = asked.request;
  MutexLock lock(mutex_);
  const Entry* existing = Find(name);
  if (existing != nullptr) {
    const CheckpointState state = existing->info.state;
    if (state == CheckpointState::kLoading || state == CheckpointState::kActive) return;
    if (state == CheckpointState::kFailed && existing->last_used > since) return;
  }
  Entry entry;
  entry.info.name = name;
  entry.info.source = request.source;
  entry.info.intended = request.intended;
  entry.info.kind = KindFor(request);
  entry.info.rank = rank_;
  entry.info.world_size = world_size_;
  entry.info.digests = request.digests;
  entry.info.created = std::chrono::system_clock::now();
  entry.info.layout = DescribeLayout(request);
  entry.asked = asked;
  entry.generation = ++ticks_;
  if (const auto aborted = aborted_.find(name); aborted != aborted_.end()) {
    if (aborted->second.tick > since) {
      entry.info.state = CheckpointState::kFailed;
      entry.info.failure = aborted->second.why;
    }
    aborted_.erase(aborted);
  }
  Log(LogLevel::kInfo, "{}: loading {}, layout {}", name, request.source, entry.info.layout);
  entries_[name] = std::move(entry);
  Touch(entries_[name]);
  Prune();
}

void Catalog::UpdateProgress(const std::string& name, const Progress& progress) {
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return;
  if (entry->filling.has_value()) {
    entry->filling->progress = progress;
  } else if (entry->info.state == CheckpointState::kLoading) {
    entry->info.progress = progress;
  } else {
    return;
  }
  Touch(*entry);
}

void Catalog::Prune() {
  std::vector<std::pair<uint64_t, std::string>> ended;
  for (const auto& [name, entry] : entries_) {
    const bool done = entry.info.state == CheckpointState::kFailed ||
                      entry.info.state == CheckpointState::kTaken;
    if (done && entry.info.leases == 0) ended.emplace_back(entry.last_used, name);
  }
  if (ended.size() <= kEndedKept) return;
  std::sort(ended.begin(), ended.end());
  for (size_t i = 0; i + kEndedKept < ended.size(); ++i) entries_.erase(ended[i].second);
}

bool Catalog::HasActive(const std::string& name, uint64_t rank_digest) const {
  MutexLock lock(mutex_);
  const Entry* entry = Find(name);
  return entry != nullptr && entry->info.state == CheckpointState::kActive &&
         entry->shard->plan.digest == rank_digest;
}

std::shared_ptr<ShardMemory> Catalog::LoadingMemory(const std::string& name) const {
  MutexLock lock(mutex_);
  const Entry* entry = Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) return nullptr;
  return entry->memory;
}

std::shared_ptr<const Shard> Catalog::LoadingShard(const std::string& name) const {
  MutexLock lock(mutex_);
  const Entry* entry = Find(name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) return nullptr;
  return entry->shard;
}

absl::Status Catalog::Publish(const CommitCall& call) {
  const std::shared_ptr<ShardMemory> memory = LoadingMemory(call.name);
  if (memory == nullptr) return CheckpointNotFound(call.name);
  bool exclusive = false;
  {
    MutexLock lock(mutex_);
    const Entry* entry = Find(call.name);
    exclusive = entry != nullptr && entry->info.intended == AttachMode::kExclusive;
  }
  memory->ReleaseStaging();
  if (!exclusive) CKPTD_RETURN_IF_ERROR(memory->Seal());
  MutexLock lock(mutex_);
  Entry* entry = Find(call.name);
  // It may have failed, and one of the same name have begun, which has no memory yet or other.
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading ||
      entry->memory != memory) {
    return CheckpointNotFound(call.name);
  }
  Shard shard = *entry->shard;
  shard.digests = call.digests;
  entry->shard = std::make_shared<Shard>(std::move(shard));
  entry->info.state = CheckpointState::kActive;
  entry->info.activated = std::chrono::system_clock::now();
  entry->info.progress = call.progress;
  entry->info.resident_ranks = world_size_;  // what is published on one rank is so on all
  entry->filled = ++ticks_;
  StartKeeping(*entry);
  Touch(*entry);
  return absl::OkStatus();
}

}  // namespace ckptd

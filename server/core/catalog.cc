#include "server/core/catalog.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Ended entries (FAILED, TAKEN) kept so that late clients can read the reason.
constexpr size_t kEndedKept = 32;

uint64_t Identity(const PrepareCall& call, const LoadRequest& request) {
  uint64_t value = RequestDigest(request);
  for (const SourceFile& file : call.index->files) {
    value = CombineDigests({value, file.device, file.inode, file.bytes,
                            static_cast<uint64_t>(file.mtime_ns),
                            static_cast<uint64_t>(file.ctime_ns), file.header_hash});
  }
  return value;
}

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

HandleKind Catalog::KindFor(const LoadRequest& request) const {
  return request.kind.value_or(backend_.kinds().front());
}

absl::Status Catalog::CheckKind(const LoadRequest& request) const {
  const std::vector<HandleKind> kinds = backend_.kinds();
  const HandleKind asked = KindFor(request);
  if (std::find(kinds.begin(), kinds.end(), asked) != kinds.end()) return absl::OkStatus();
  std::vector<std::string_view> names;
  for (const HandleKind kind : kinds) names.push_back(NameOf(kind));
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                   fmt::format("loading {}: memory of rank {} is in {} and cannot be handed out as "
                               "{}, only as {}; ask for none, or use another daemon",
                               request.source, rank_,
                               backend_.device().empty() ? "the host" : backend_.device(),
                               NameOf(asked), fmt::join(names, " or ")));
}

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

std::optional<Catalog::Match> Catalog::FindMatch(const LoadRequest& request) const {
  const uint64_t digest = RequestDigest(request);
  // Who needs no digests is served by a checkpoint that has them.
  LoadRequest richer = request;
  richer.digests = true;
  const uint64_t richer_digest = RequestDigest(richer);
  MutexLock lock(mutex_);
  const Entry* best = nullptr;
  for (const auto& [name, entry] : entries_) {
    const bool active = entry.info.state == CheckpointState::kActive;
    if (entry.request_digest != digest && (!active || entry.request_digest != richer_digest)) {
      continue;
    }
    if (!active && entry.info.state != CheckpointState::kLoading) continue;
    // Memory that has been lent to readers cannot be handed over any more.
    if (active && request.intended == AttachMode::kExclusive && entry.memory->sealed()) continue;
    if (best == nullptr || entry.info.created > best->info.created) best = &entry;
  }
  if (best == nullptr) return std::nullopt;
  return Match{best->info.name, best->info.state == CheckpointState::kActive, best->files};
}

std::vector<std::string> Catalog::NearMiss(const LoadRequest& request) const {
  MutexLock lock(mutex_);
  const Entry* best = nullptr;
  for (const auto& [name, entry] : entries_) {
    if (entry.request.source != request.source) continue;
    if (entry.info.state != CheckpointState::kActive) continue;
    if (best == nullptr || entry.info.created > best->info.created) best = &entry;
  }
  if (best == nullptr) return {};
  std::vector<std::string> fields = DifferingFields(request, best->request);
  if (fields.empty()) fields.emplace_back("files");
  return fields;
}

uint64_t Catalog::Tick() const {
  MutexLock lock(mutex_);
  return ticks_;
}

void Catalog::Begin(const std::string& name, const LoadRequest& request, uint64_t since) {
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
  entry.request = request;
  entry.request_digest = RequestDigest(request);
  entry.load_key = LoadKey(request);
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
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) return;
  entry->info.progress = progress;
  Touch(*entry);
}

bool Catalog::Evictable(const Entry& entry) {
  return entry.info.state == CheckpointState::kActive && !entry.info.pinned &&
         entry.info.leases == 0 && entry.info.slab_bytes > 0;
}

uint64_t Catalog::HeldBytes() const {
  uint64_t held = 0;
  for (const auto& [name, entry] : entries_) {
    if (entry.memory != nullptr && !Evictable(entry)) held += entry.info.slab_bytes;
  }
  return held;
}

std::shared_ptr<ShardMemory> Catalog::EvictOne() {
  Entry* victim = nullptr;
  for (auto& [name, entry] : entries_) {
    if (!Evictable(entry)) continue;
    if (victim == nullptr || entry.last_used < victim->last_used) victim = &entry;
  }
  if (victim == nullptr) return nullptr;
  Log(LogLevel::kInfo, "{}: evicted, {:.1f} MB", victim->info.name,
      static_cast<double>(victim->info.slab_bytes) / 1e6);
  std::shared_ptr<ShardMemory> memory = std::move(victim->memory);
  entries_.erase(victim->info.name);
  changed_.NotifyAll();
  return memory;
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

std::string Catalog::Occupants() const {
  uint64_t leased = 0;
  uint64_t pinned = 0;
  uint64_t loading = 0;
  for (const auto& [name, entry] : entries_) {
    if (entry.info.state == CheckpointState::kLoading) {
      loading += entry.info.slab_bytes;
    } else if (entry.info.state == CheckpointState::kActive) {
      (entry.info.leases > 0 ? leased : pinned) += entry.info.slab_bytes;
    }
  }
  return fmt::format("of the resident checkpoints {} bytes are leased, {} pinned, {} loading",
                     leased, pinned, loading);
}

absl::StatusOr<std::unique_ptr<Slab>> Catalog::AllocateEvicting(uint64_t bytes,
                                                                const LoadRequest& request) {
  const uint64_t budget = backend_.Usage().budget;
  for (;;) {
    auto slab = backend_.Allocate(bytes, request.intended, KindFor(request));
    if (slab.ok() || slab.status().code() != absl::StatusCode::kResourceExhausted) return slab;
    std::shared_ptr<ShardMemory> evicted;
    std::string occupants;
    {
      MutexLock lock(mutex_);
      // What cannot fit even then costs nobody its checkpoint.
      const uint64_t held = std::min(budget, HeldBytes());
      if (bytes <= budget - held) evicted = EvictOne();
      occupants = Occupants();
    }
    if (evicted == nullptr) {
      return MakeError(slab.status().code(), reason::kNoMemory,
                       MessageOf(slab.status()) + "; " + occupants, FactsOf(slab.status()));
    }
  }
}

absl::StatusOr<std::shared_ptr<ShardMemory>> Catalog::Allocate(const PrepareCall& call,
                                                               Shard shard) {
  CKPTD_RETURN_IF_ERROR(CheckKind(call.request));
  std::unique_ptr<Slab> slab;
  if (shard.plan.slab_bytes > 0) {
    CKPTD_ASSIGN_OR_RETURN(slab, AllocateEvicting(shard.plan.slab_bytes, call.request));
  }
  auto memory =
      std::make_shared<ShardMemory>(backend_, std::move(slab), KindFor(call.request));
  MutexLock lock(mutex_);
  Entry* entry = Find(call.name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) {
    return CheckpointNotFound(call.name);
  }
  shard.plan.ops = {};
  entry->info.slab_bytes = shard.plan.slab_bytes;
  entry->info.tensor_count = shard.plan.tensors.size();
  entry->info.plan_digest = call.plan_digest;
  entry->info.epoch = call.epoch;
  entry->info.identity = Identity(call, entry->request);
  entry->files = call.index->files;
  entry->request_digests = call.request_digests;
  entry->memory = memory;
  entry->shard = std::make_shared<Shard>(std::move(shard));
  Touch(*entry);
  return memory;
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
  if (!exclusive) CKPTD_RETURN_IF_ERROR(memory->Seal());
  MutexLock lock(mutex_);
  Entry* entry = Find(call.name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) {
    return CheckpointNotFound(call.name);
  }
  Shard shard = *entry->shard;
  shard.digests = call.digests;
  entry->shard = std::make_shared<Shard>(std::move(shard));
  entry->info.state = CheckpointState::kActive;
  entry->info.activated = std::chrono::system_clock::now();
  entry->info.progress = call.progress;
  Touch(*entry);
  return absl::OkStatus();
}

}  // namespace ckptd

#include "server/catalog/eviction.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// A number that the backend says of what it refused; unset: not said.
std::optional<uint64_t> Said(const absl::Status& refused, const char* fact) {
  const Facts facts = FactsOf(refused);
  const auto said = facts.find(fact);
  uint64_t bytes = 0;
  if (said == facts.end()) return std::nullopt;
  const std::string& text = said->second;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), bytes);
  return read.ec == std::errc() ? std::optional(bytes) : std::nullopt;
}

}  // namespace

// Memory by name goes with this process, so a client gets it only by asking for it.
HandleKind KindFor(const MemoryBackend& backend, const LoadRequest& request) {
  const HandleKind first = backend.kinds().front();
  return request.kind.value_or(EndsWithDaemon(first) ? HandleKind::kVmmFd : first);
}

absl::Status Eviction::CheckKind(const LoadRequest& request) const {
  const std::vector<HandleKind> kinds = backend_.kinds();
  const HandleKind asked = KindFor(backend_, request);
  if (std::find(kinds.begin(), kinds.end(), asked) != kinds.end()) return absl::OkStatus();
  std::vector<std::string_view> names;
  for (const HandleKind kind : kinds) names.push_back(NameOf(kind));
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                   fmt::format("loading {}: memory of rank {} is in {} and cannot be handed out as "
                               "{}, only as {}; ask for {}, or use another daemon",
                               request.source, table_.rank,
                               backend_.device().empty() ? "the host" : backend_.device(),
                               NameOf(asked), fmt::join(names, " or "),
                               EndsWithDaemon(kinds.front())
                                   ? "that (--handle cuda_ipc), which is gone with this daemon"
                                   : "none"));
}

bool Eviction::Evictable(const CatalogEntry& entry) const {
  return entry.info.state == CheckpointState::kActive && !entry.info.pinned && !entry.IsView() &&
         entry.info.leases == 0 && entry.info.slab_bytes > 0 && !entry.Kept() &&
         table_.Unended(entry) == nullptr;
}

// A load that cannot fit even then evicts nothing.
bool Eviction::EvictionHelps(uint64_t bytes, uint64_t budget,
                            std::optional<uint64_t> device_free) const {
  uint64_t evictable = 0;
  for (const auto& [name, entry] : table_.entries) {
    if (entry.memory == nullptr || !Evictable(entry)) continue;
    // On a GPU the whole allocation counts.
    for (const Segment& segment : entry.memory->Segments()) evictable += segment.bytes;
  }
  // This includes memory that was unloaded by force while somebody used it.
  const uint64_t used = backend_.Usage().used;
  const uint64_t held = used - std::min(used, evictable + going_);
  if (bytes > budget - std::min(budget, held)) return false;
  // Others may have what the budget would allow.
  return !device_free.has_value() || bytes <= *device_free + evictable;
}

std::shared_ptr<ShardMemory> Eviction::EvictOne() {
  CatalogEntry* victim = nullptr;
  for (auto& [name, entry] : table_.entries) {
    if (!Evictable(entry)) continue;
    if (victim == nullptr || entry.last_used < victim->last_used) victim = &entry;
  }
  if (victim == nullptr) return nullptr;
  Log(LogLevel::kInfo, "{}: evicted, {:.1f} MB", victim->info.name,
      static_cast<double>(victim->info.slab_bytes) / 1e6);
  if (observer_ != nullptr) observer_->OnEvicted(victim->info.slab_bytes);
  std::shared_ptr<ShardMemory> memory = std::move(victim->memory);
  std::erase_if(leaving_, [](const auto& left) { return left.second.expired(); });
  leaving_.emplace_back(victim->info.name, memory);
  table_.Erase(std::string(victim->info.name));
  table_.changed.NotifyAll();
  return memory;
}

absl::StatusOr<std::unique_ptr<Slab>> Eviction::AllocateEvicting(uint64_t bytes,
                                                                const PrepareCall& call) {
  absl::Status status = CheckTurn(bytes, call);
  while (status.ok()) {
    auto slab = backend_.Allocate(bytes, call.request.intended, KindFor(backend_, call.request));
    if (slab.ok()) return slab;
    status = MakeRoom(bytes, slab.status());
  }
  NoteWanted(call, bytes, status);
  return status;
}

absl::Status Eviction::MakeRoom(uint64_t bytes, const absl::Status& refused) {
  // What lacks may be no memory that shards are in.
  if (refused.code() != absl::StatusCode::kResourceExhausted ||
      Said(refused, "host_bytes").has_value()) {
    return refused;
  }
  // Free on its device, for whoever takes it; and what it would take, in whole allocations.
  const std::optional<uint64_t> device_free = Said(refused, "device_free_bytes");
  const uint64_t taken = std::max(bytes, Said(refused, "asked_bytes").value_or(0));
  const uint64_t budget = backend_.Usage().budget;
  std::shared_ptr<ShardMemory> evicted;  // goes without the lock
  Occupied occupied;
  {
    MutexLock lock(table_.mutex);
    if (EvictionHelps(taken, budget, device_free)) evicted = EvictOne();
    if (evicted != nullptr) return absl::OkStatus();
    occupied = FindOccupied();
  }
  return SayOccupied(refused, occupied, taken <= budget);
}

absl::StatusOr<std::shared_ptr<ShardMemory>> Eviction::Allocate(const PrepareCall& call,
                                                               Shard shard) {
  CKPTD_RETURN_IF_ERROR(CheckKind(call.request));
  std::unique_ptr<Slab> slab;
  if (shard.plan.slab_bytes > 0) {
    CKPTD_ASSIGN_OR_RETURN(slab, AllocateEvicting(shard.plan.slab_bytes, call));
  }
  auto memory =
      std::make_shared<ShardMemory>(backend_, std::move(slab), KindFor(backend_, call.request));
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(call.name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) {
    return CheckpointNotFound(call.name);
  }
  entry->NotePlan(call, std::move(shard));
  entry->memory = memory;
  entry->wanted.reset();
  table_.BumpVersion(*entry);
  return memory;
}

}  // namespace ckptd

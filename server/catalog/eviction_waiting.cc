// The part of the eviction that says who holds memory, and serves loads that wait for it.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/catalog/eviction.h"

namespace ckptd {
namespace {

constexpr size_t kNamed = 3;  // checkpoints that hold memory, in a message

uint64_t BytesOf(const ShardMemory& memory) {
  uint64_t bytes = 0;
  for (const Segment& segment : memory.Segments()) bytes += segment.bytes;
  return bytes;
}

}  // namespace

Eviction::Occupied Eviction::FindOccupied() const {
  Occupied out;
  for (const auto& [name, entry] : table_.entries) {
    const CheckpointInfo& info = entry.info;
    if (entry.IsView()) continue;
    if (info.state == CheckpointState::kLoading) out.loading += info.slab_bytes;
    if (info.state != CheckpointState::kActive || entry.memory == nullptr) continue;
    if (info.leases > 0) {
      out.leased += info.slab_bytes;
      out.by.emplace_back(name, "leased");
    } else if (info.pinned) {
      out.pinned += info.slab_bytes;
      out.by.emplace_back(name, "pinned");
    } else if (!Evictable(entry) && info.slab_bytes > 0) {
      out.by.emplace_back(name, table_.Unended(entry) != nullptr
                                    ? "needed until other ranks are filled"
                                    : fmt::format("kept for who waited for it, which is to acquire "
                                                  "it within {} s",
                                                  timing::kKeptForClient.count()));
    }
  }
  for (const auto& [name, memory] : leaving_) {
    if (!memory.expired()) out.by.emplace_back(name, "evicted and about to be free");
  }
  return out;
}

absl::Status Eviction::SayOccupied(const absl::Status& refused, const Occupied& occupied,
                                  bool may_fit) const {
  std::vector<std::string> held;
  std::vector<std::string> names;
  for (const auto& [name, how] : occupied.by) {
    names.push_back(name);
    if (held.size() == kNamed) continue;
    const std::vector<int32_t> pids = how == "leased" ? holders_(name) : std::vector<int32_t>();
    held.push_back(pids.empty() ? fmt::format("{} is {}", name, how)
                                : fmt::format("{} is leased by process {}", name,
                                              fmt::join(pids, ", ")));
  }
  if (names.size() > held.size()) held.push_back(fmt::format("{} more", names.size() - held.size()));
  std::string text = fmt::format(
      "{}; of the resident checkpoints {} bytes are leased, {} pinned, {} loading",
      MessageOf(refused), occupied.leased, occupied.pinned, occupied.loading);
  if (!held.empty()) {
    text += fmt::format(": {} (`ckptctl leases --rank {}` shows leases)", fmt::join(held, "; "), table_.rank);
  }
  Facts facts = FactsOf(refused);
  if (may_fit && !names.empty()) facts[kHeldBy] = fmt::format("{}", fmt::join(names, ","));
  return MakeError(refused.code(), reason::kNoMemory, text, facts);
}

absl::Status Eviction::CheckTurn(uint64_t bytes, const PrepareCall& call) const {
  const uint64_t budget = backend_.Usage().budget;
  MutexLock lock(table_.mutex);
  for (const auto& [name, entry] : table_.entries) {
    if (!entry.wanted.has_value() || name == call.name) continue;
    const bool first = call.order == 0 || entry.wanted->order < call.order;
    if (!first || bytes + entry.wanted->bytes <= budget) continue;
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     fmt::format("allocating {} bytes: {} has waited for {} bytes for longer, and "
                                 "the budget of {} bytes is not for both; wait (--wait-memory), or "
                                 "raise memory-budget",
                                 bytes, name, entry.wanted->bytes, budget),
                     {{kHeldBy, name}});
  }
  return absl::OkStatus();
}

void Eviction::NoteWanted(const PrepareCall& call, uint64_t bytes, const absl::Status& refused) {
  if (call.order == 0 || FactsOf(refused).count(kHeldBy) == 0) return;
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(call.name);
  if (entry == nullptr || entry->info.state != CheckpointState::kLoading) return;
  entry->wanted = CatalogEntry::Wanted{bytes, call.order};
}

void Eviction::GiveBack(const std::string& name) {
  std::shared_ptr<ShardMemory> freed;  // destroyed after the lock
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return;
  // Else others would wait for what it keeps of its owner, and it for them.
  if (entry->IsView() && entry->filling.has_value() && entry->filled == 0) {
    entry->info.state = CheckpointState::kLoading;
    entry->info.served_from.clear();
    entry->filling.reset();
  }
  if (entry->info.state != CheckpointState::kLoading) return;
  freed = std::move(entry->memory);
  entry->shard = nullptr;
  entry->info.slab_bytes = 0;
  table_.BumpVersion(*entry);
}

bool Eviction::AnyWaiting() const {
  MutexLock lock(table_.mutex);
  return std::any_of(table_.entries.begin(), table_.entries.end(),
                     [](const auto& entry) { return entry.second.wanted.has_value(); });
}

void Eviction::Free(Evicted evicted, uint64_t bytes) {
  if (evicted.empty()) return;
  // One owner: what is freed is gone when that has been counted.
  const auto all = std::make_shared<Evicted>(std::move(evicted));
  const auto free = [this, all, bytes] {
    all->clear();
    MutexLock lock(table_.mutex);
    going_ -= bytes;
  };
  if (later_) return later_(free);
  free();
}

uint64_t Eviction::EvictUntil(uint64_t lacking, Evicted& evicted) {
  uint64_t bytes = 0;
  while (bytes < lacking) {
    std::shared_ptr<ShardMemory> memory = EvictOne();
    if (memory == nullptr) break;
    bytes += BytesOf(*memory);
    evicted.push_back(std::move(memory));
  }
  going_ += bytes;
  return bytes;
}

std::vector<std::pair<CatalogEntry::Wanted, std::string>> Eviction::WaitingInOrder() const {
  std::vector<std::pair<CatalogEntry::Wanted, std::string>> waiting;
  for (const auto& [name, entry] : table_.entries) {
    if (entry.wanted.has_value()) waiting.emplace_back(*entry.wanted, name);
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const auto& a, const auto& b) { return a.first.order < b.first.order; });
  return waiting;
}

std::vector<std::string> Eviction::MakeRoomForWaiting() {
  std::vector<std::string> fit;
  // Heartbeats come through here, and the backend's answer may wait for memory that is being made.
  if (!AnyWaiting()) return fit;
  uint64_t going = 0;
  {
    // Before the use is looked at: what is freed in between counts as room twice, not as used twice.
    MutexLock lock(table_.mutex);
    going = going_;
  }
  const MemoryUsage usage = backend_.Usage();
  Evicted evicted;
  uint64_t bytes = 0;
  {
    MutexLock lock(table_.mutex);
    going = std::max(going, going_);
    uint64_t ahead = 0;  // the most that one wants who comes first
    for (const auto& [wanted, name] : WaitingInOrder()) {
      const bool turn = ahead == 0 || ahead + wanted.bytes <= usage.budget;
      ahead = std::max(ahead, wanted.bytes);
      if (!turn || !EvictionHelps(wanted.bytes, usage.budget, std::nullopt)) continue;
      const uint64_t would = usage.used + wanted.bytes;
      const uint64_t room = usage.budget + going + bytes;
      // Now: else whoever used it last could have it again, and again.
      if (would > room) bytes += EvictUntil(would - room, evicted);
      if (!later_ || would <= usage.budget) fit.push_back(name);
    }
  }
  Free(std::move(evicted), bytes);
  return fit;
}

}  // namespace ckptd

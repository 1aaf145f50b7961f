#include "server/catalog/watchers.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// It waits for the proposals of other ranks, and its own client has gone.
bool Abandoned(const CatalogEntry& entry, Clock::time_point now) {
  return entry.Gathers() && IsRankForm(entry.asked.request) && entry.watchers == 0 &&
         !entry.polled && entry.unwatched.has_value() &&
         now - *entry.unwatched >= timing::kAbandoned;
}

}  // namespace

absl::StatusOr<CheckpointInfo> Watchers::Watch(const std::string& name, uint64_t& seen,
                                              Deadline deadline) const {
  MutexLock lock(table_.mutex);
  table_.changed.WaitUntil(table_.mutex, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                                       table_.mutex) {
    const CatalogEntry* entry = table_.Find(name);
    return table_.stopped || entry == nullptr || entry->version != seen;
  });
  const CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return CheckpointNotFound(name);
  seen = entry->version;
  return table_.InfoOf(*entry);
}

uint64_t Watchers::Add(const std::string& name) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return 0;
  ++entry->watchers;
  return entry->generation;
}

void Watchers::Left(const std::string& name, uint64_t generation, Clock::time_point now) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  // One that was made anew under its name has not seen this watcher come.
  if (entry == nullptr || entry->generation != generation || entry->watchers == 0) return;
  if (--entry->watchers == 0) entry->unwatched = now;
}

void Watchers::WasPolled(const std::string& name) {
  MutexLock lock(table_.mutex);
  if (CatalogEntry* entry = table_.Find(name); entry != nullptr) entry->polled = true;
}

void Watchers::ExtendGrace(const std::string& name, Clock::time_point now) {
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry != nullptr && entry->unwatched.has_value()) entry->unwatched = now;
}

void Watchers::WatchEnd(const std::string& name, Deadline deadline) const {
  MutexLock lock(table_.mutex);
  table_.changed.WaitUntil(table_.mutex, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                                       table_.mutex) {
    const CatalogEntry* entry = table_.Find(name);
    return table_.stopped || entry == nullptr || !entry->LoadsSince().has_value();
  });
}

std::vector<std::string> Watchers::ReapAbandoned(Clock::time_point now) {
  std::vector<std::string> proposals;
  MutexLock lock(table_.mutex);
  for (auto& [name, entry] : table_.entries) {
    if (!Abandoned(entry, now)) continue;
    proposals.push_back(std::move(entry.asked.request.proposal_id));
    entry.info.state = CheckpointState::kFailed;
    entry.info.failure =
        MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                  fmt::format("loading {}: its trainer went away before all ranks had stated "
                              "their tensors; load again",
                              entry.info.source),
                  {{"rank", std::to_string(table_.rank)}});
    entry.KeepWhatIsShown();
    table_.BumpVersion(entry);
    Log(LogLevel::kWarn, "{}: {}", name, MessageOf(entry.info.failure));
  }
  return proposals;
}

}  // namespace ckptd

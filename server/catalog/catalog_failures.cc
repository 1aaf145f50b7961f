// The part of the catalog that ends loads.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

namespace ckptd {
namespace {

// Aborts of loads that are not known here yet.
constexpr size_t kAbortsKept = 32;

}  // namespace

void Catalog::Fail(const std::string& name, const absl::Status& why) {
  std::shared_ptr<ShardMemory> freed;  // destroyed after the lock
  MutexLock lock(mutex_);
  Entry* entry = Find(name);
  if (entry == nullptr) return NoteAbort(name, why);
  if (entry->info.state == CheckpointState::kActive) return EndFilling(*entry, why);
  if (entry->info.state != CheckpointState::kLoading) return;
  entry->info.state = CheckpointState::kFailed;
  entry->info.failure = why;
  freed = std::move(entry->memory);
  KeepWhatIsShown(*entry);
  Touch(*entry);
  Log(LogLevel::kError, "{}: failed: {} ({})", name, MessageOf(why), ReasonOf(why));
}

bool Catalog::Gathers(const Entry& entry) {
  const Stage stage = entry.info.progress.stage;
  return entry.info.state == CheckpointState::kLoading && entry.memory == nullptr &&
         (stage == Stage::kUnspecified || stage == Stage::kGathering ||
          stage == Stage::kWaitingForMemory);
}

bool Catalog::Abandoned(const Entry& entry, Clock::time_point now) {
  return Gathers(entry) && IsRankForm(entry.asked.request) && entry.watchers == 0 && !entry.polled &&
         entry.unwatched.has_value() && now - *entry.unwatched >= timing::kAbandoned;
}

std::vector<std::string> Catalog::ReapAbandoned(Clock::time_point now) {
  std::vector<std::string> proposals;
  MutexLock lock(mutex_);
  for (auto& [name, entry] : entries_) {
    if (!Abandoned(entry, now)) continue;
    proposals.push_back(std::move(entry.asked.request.proposal_id));
    entry.info.state = CheckpointState::kFailed;
    entry.info.failure =
        MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                  fmt::format("loading {}: its trainer went away before all ranks had stated "
                              "their tensors; load again",
                              entry.info.source),
                  {{"rank", std::to_string(rank_)}});
    KeepWhatIsShown(entry);
    Touch(entry);
    Log(LogLevel::kWarn, "{}: {}", name, MessageOf(entry.info.failure));
  }
  return proposals;
}

void Catalog::KeepWhatIsShown(Entry& entry) {
  entry.asked = {};
  entry.shard = nullptr;
  entry.wanted.reset();
}

void Catalog::NoteAbort(const std::string& name, const absl::Status& why) {
  aborted_[name] = {why, ++ticks_};
  if (aborted_.size() <= kAbortsKept) return;
  aborted_.erase(std::min_element(
      aborted_.begin(), aborted_.end(),
      [](const auto& a, const auto& b) { return a.second.tick < b.second.tick; }));
}

void Catalog::NoteGone(const std::string& name) {
  NoteAbort(name, MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                            fmt::format("loading {}: it was loaded, and unloaded or evicted again, "
                                        "before this call heard of it; load again",
                                        name)));
}

std::optional<uint64_t> Catalog::LoadsSince(const Entry& entry) {
  if (entry.filling.has_value()) return entry.filling->begun;
  if (entry.info.state != CheckpointState::kLoading) return std::nullopt;
  return entry.generation;
}

void Catalog::FailAllLoading(const absl::Status& why, uint64_t since) {
  std::vector<std::string> names;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      const auto begun = LoadsSince(entry);
      if (begun.has_value() && *begun <= since) names.push_back(name);
    }
  }
  for (const std::string& name : names) Fail(name, why);
}

void Catalog::FailForgotten(const std::set<std::string>& known, uint64_t since) {
  std::vector<std::string> names;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, entry] : entries_) {
      const auto begun = LoadsSince(entry);
      if (begun.has_value() && *begun <= since && known.count(name) == 0) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    Fail(name, MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                         fmt::format("loading {}: rank 0 has given this load up and could not "
                                     "tell this rank why; load again",
                                     name),
                         {{"rank", "0"}}));
  }
}

}  // namespace ckptd

// The part of the catalog that ends loads.
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"

namespace ckptd {

void Catalog::Fail(const std::string& name, const absl::Status& why) {
  std::shared_ptr<ShardMemory> freed;  // destroyed after the lock
  MutexLock lock(table_.mutex);
  CatalogEntry* entry = table_.Find(name);
  if (entry == nullptr) return table_.tombstones.Add(name, why, ++table_.ticks);
  if (entry->info.state == CheckpointState::kActive) return EndFilling(*entry, why);
  if (entry->info.state != CheckpointState::kLoading) return;
  entry->info.state = CheckpointState::kFailed;
  entry->info.failure = why;
  freed = std::move(entry->memory);
  entry->KeepWhatIsShown();
  table_.BumpVersion(*entry);
  Log(LogLevel::kError, "{}: failed: {} ({})", name, MessageOf(why), ReasonOf(why));
}

void Catalog::FailAllLoading(const absl::Status& why, uint64_t since) {
  std::vector<std::string> names;
  {
    MutexLock lock(table_.mutex);
    for (const auto& [name, entry] : table_.entries) {
      const auto begun = entry.LoadsSince();
      if (begun.has_value() && *begun <= since) names.push_back(name);
    }
  }
  for (const std::string& name : names) Fail(name, why);
}

void Catalog::FailForgotten(const std::set<std::string>& known, uint64_t since) {
  std::vector<std::string> names;
  {
    MutexLock lock(table_.mutex);
    for (const auto& [name, entry] : table_.entries) {
      const auto begun = entry.LoadsSince();
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

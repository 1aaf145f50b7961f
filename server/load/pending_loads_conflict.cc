// The part of the pending loads that ends those that can never begin.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/pending_loads.h"

namespace ckptd {
namespace {

absl::Status Conflict(const std::string& source, const std::string& elsewhere) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLoadConflict,
                   fmt::format("loading {}: the ranks do not make the same load, {}; call it with "
                               "the same source and options on every rank, and several in the "
                               "same order",
                               source, elsewhere));
}

bool MayShareOne(const std::set<std::string>& a, const std::set<std::string>& b) {
  return a.count("") > 0 || b.count("") > 0 ||
         std::any_of(a.begin(), a.end(), [&b](const std::string& job) { return b.count(job) > 0; });
}

}  // namespace

bool PendingLoads::WaitsFor(const PendingLoad& pending, const std::vector<int32_t>& missing, const PendingLoad& other,
                      const JobsOf& jobs) {
  const auto stated = [&other](int32_t rank) {
    return other.digests[static_cast<size_t>(rank)] != 0;
  };
  if (std::none_of(missing.begin(), missing.end(), stated)) return false;
  std::set<std::string> own;
  for (uint32_t rank = 0; rank < pending.digests.size(); ++rank) {
    if (pending.digests[rank] != 0) own.merge(jobs(rank, pending.request.source));
  }
  return std::any_of(missing.begin(), missing.end(), [&](int32_t rank) {
    return stated(rank) &&
           MayShareOne(own, jobs(static_cast<uint32_t>(rank), other.request.source));
  });
}

void PendingLoads::GiveUp(const std::string& source, const absl::Status& why) {
  MutexLock lock(mutex_);
  for (auto& [name, pending] : pending_) {
    const bool waits = !pending.running && IsRankForm(pending.request) && pending.cancelled.ok();
    if (!waits || pending.request.source != source) continue;
    pending.cancelled = why;
    pending.doomed = true;
  }
}

void PendingLoads::EndConflicts(Clock::time_point now, const JobsOf& jobs) {
  MutexLock lock(mutex_);
  struct Open {
    const std::string* name;
    PendingLoad* pending;
    std::vector<int32_t> missing;
    bool conflict = false;
  };
  std::vector<Open> open;
  for (auto& [name, pending] : pending_) {
    if (pending.running || !IsRankForm(pending.request) || !pending.cancelled.ok()) continue;
    open.push_back({&name, &pending, MissingOf(name, pending)});
  }
  // Two are enough: of more that wait in a circle, each waits for the ranks of each other one.
  for (size_t i = 0; i < open.size(); ++i) {
    for (size_t j = i + 1; j < open.size(); ++j) {
      if (open[i].conflict && open[j].conflict) continue;
      if (!WaitsFor(*open[i].pending, open[i].missing, *open[j].pending, jobs)) continue;
      if (!WaitsFor(*open[j].pending, open[j].missing, *open[i].pending, jobs)) continue;
      open[i].conflict = open[j].conflict = true;
    }
  }
  // All of them are described before one is given up.
  const std::vector<const PendingLoad*> stated = WhereStated();
  for (const Open& one : open) {
    std::optional<Clock::time_point>& since = one.pending->conflict;
    since = one.conflict ? since.value_or(now) : std::optional<Clock::time_point>();
    if (!since.has_value() || now - *since < kConflictPatience) continue;
    one.pending->cancelled =
        Conflict(one.pending->request.source, DescribeConflict(*one.pending, one.missing, stated));
    one.pending->doomed = true;
  }
}

}  // namespace ckptd

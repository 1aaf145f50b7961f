// The part of the pending loads that says what waits for what, and cancels loads that can never
// begin.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/pending_loads.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

absl::Status Conflict(const std::string& source, const std::string& conflict) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLoadConflict,
                   fmt::format("loading {}: the ranks do not make the same load, {}; call it with "
                               "the same source and options on every rank, and several in the "
                               "same order",
                               source, conflict));
}

// Loads of two users never wait for each other, and are not told of each other.
bool OfOneUser(const LoadRequest& a, const LoadRequest& b) {
  return UserOf(a.guest) == UserOf(b.guest);
}

bool MayShareOne(const std::set<std::string>& a, const std::set<std::string>& b) {
  return a.count("") > 0 || b.count("") > 0 ||
         std::any_of(a.begin(), a.end(), [&b](const std::string& job) { return b.count(job) > 0; });
}

}  // namespace

std::vector<const PendingLoads::PendingLoad*> PendingLoads::WaitingByRank() const {
  std::vector<const PendingLoad*> by_rank(world_size_, nullptr);
  for (const auto& [name, open] : pending_) {
    if (!open.waits() || !IsRankForm(open.request)) continue;
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      if (open.digests[rank] != 0) by_rank[rank] = &open;
    }
  }
  return by_rank;
}

PendingLoads::Waiting PendingLoads::Snapshot(
    const std::string& name, const PendingLoad& pending,
    const std::vector<const PendingLoad*>& by_rank) const {
  Waiting out{name, MissingOf(name, pending), {}, pending.state->cancelled()};
  if (!pending.refused_by.empty()) {
    out.refused = pending.refused;
    out.ranks.assign(pending.refused_by.begin(), pending.refused_by.end());
    return out;
  }
  out.conflict = DescribeConflict(pending, out.ranks, by_rank);
  return out;
}

// A missing rank has neither proposed that load nor holds its checkpoint: any load or checkpoint
// that is found is another one.
std::string PendingLoads::DescribeConflict(const PendingLoad& pending,
                                           const std::vector<int32_t>& missing,
                                           const std::vector<const PendingLoad*>& by_rank) const {
  for (const int32_t rank : missing) {
    const PendingLoad* const other = by_rank[static_cast<size_t>(rank)];
    if (other == nullptr || !OfOneUser(other->request, pending.request)) continue;
    const bool same = other->request.source == pending.request.source;
    return fmt::format("rank {} loads {}{}", rank, other->request.source,
                       same ? " with other options" : "");
  }
  const KnownCheckpoint* known = known_.FindHeld(pending.load_key, missing);
  if (known == nullptr) return "";
  const auto rank = std::find_if(missing.begin(), missing.end(), [known](int32_t one) {
    return known->HeldBy(static_cast<uint32_t>(one));
  });
  return fmt::format("rank {} holds its shard of {}", *rank, known->name);
}

bool PendingLoads::WaitsFor(const PendingLoad& pending, const std::vector<int32_t>& missing,
                            const PendingLoad& other, const JobsOf& jobs) {
  if (!OfOneUser(pending.request, other.request)) return false;
  const auto proposed = [&other](int32_t rank) {
    return other.digests[static_cast<size_t>(rank)] != 0;
  };
  if (std::none_of(missing.begin(), missing.end(), proposed)) return false;
  std::set<std::string> own;
  for (uint32_t rank = 0; rank < pending.digests.size(); ++rank) {
    if (pending.digests[rank] != 0) own.merge(jobs(rank, pending.request));
  }
  return std::any_of(missing.begin(), missing.end(), [&](int32_t rank) {
    return proposed(rank) &&
           MayShareOne(own, jobs(static_cast<uint32_t>(rank), other.request));
  });
}

void PendingLoads::CancelWaiting(const std::string& source, const absl::Status& why,
                                 std::optional<uid_t> guest) {
  MutexLock lock(mutex_);
  for (auto& [name, pending] : pending_) {
    if (!pending.waits() || !IsRankForm(pending.request)) continue;
    const LoadRequest& request = pending.request;
    if (request.source == source && UserOf(request.guest) == guest) pending.state->Cancel(why);
  }
}

void PendingLoads::EndConflicts(Clock::time_point now, const JobsOf& jobs) {
  MutexLock lock(mutex_);
  struct Open {
    PendingLoad* pending;
    std::vector<int32_t> missing;
    bool conflict = false;
  };
  std::vector<Open> open;
  for (auto& [name, pending] : pending_) {
    const bool waits = pending.waits() && pending.state->cancelled().ok();
    if (waits && IsRankForm(pending.request)) open.push_back({&pending, MissingOf(name, pending)});
  }
  // Pairs are enough: of loads that wait in a circle, each waits for the ranks of each other one.
  for (size_t i = 0; i < open.size(); ++i) {
    for (size_t j = i + 1; j < open.size(); ++j) {
      if (open[i].conflict && open[j].conflict) continue;
      if (!WaitsFor(*open[i].pending, open[i].missing, *open[j].pending, jobs)) continue;
      if (!WaitsFor(*open[j].pending, open[j].missing, *open[i].pending, jobs)) continue;
      open[i].conflict = open[j].conflict = true;
    }
  }
  // All of them are described before one is cancelled.
  const std::vector<const PendingLoad*> by_rank = WaitingByRank();
  for (const Open& one : open) {
    std::optional<Clock::time_point>& since = one.pending->conflict_since;
    since = one.conflict ? since.value_or(now) : std::optional<Clock::time_point>();
    if (!since.has_value() || now - *since < timing::kConflictPatience) continue;
    one.pending->state->Cancel(Conflict(
        one.pending->request.source, DescribeConflict(*one.pending, one.missing, by_rank)));
  }
}

}  // namespace ckptd

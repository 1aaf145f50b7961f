// The part of the rounds that ends those that can never begin.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/rounds.h"

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

bool Rounds::WaitsFor(const Round& round, const std::vector<int32_t>& missing, const Round& other,
                      const JobsOf& jobs) {
  const auto stated = [&other](int32_t rank) {
    return other.digests[static_cast<size_t>(rank)] != 0;
  };
  if (std::none_of(missing.begin(), missing.end(), stated)) return false;
  std::set<std::string> own;
  for (uint32_t rank = 0; rank < round.digests.size(); ++rank) {
    if (round.digests[rank] != 0) own.merge(jobs(rank, round.request.source));
  }
  return std::any_of(missing.begin(), missing.end(), [&](int32_t rank) {
    return stated(rank) &&
           MayShareOne(own, jobs(static_cast<uint32_t>(rank), other.request.source));
  });
}

void Rounds::GiveUp(const std::string& source, const absl::Status& why) {
  MutexLock lock(mutex_);
  for (auto& [name, round] : rounds_) {
    const bool waits = !round.running && IsRankForm(round.request) && round.cancelled.ok();
    if (!waits || round.request.source != source) continue;
    round.cancelled = why;
    round.failing = true;
  }
}

void Rounds::EndConflicts(Clock::time_point now, const JobsOf& jobs) {
  MutexLock lock(mutex_);
  struct Open {
    const std::string* name;
    Round* round;
    std::vector<int32_t> missing;
    bool conflict = false;
  };
  std::vector<Open> open;
  for (auto& [name, round] : rounds_) {
    if (round.running || !IsRankForm(round.request) || !round.cancelled.ok()) continue;
    open.push_back({&name, &round, MissingOf(name, round)});
  }
  // Two are enough: of more that wait in a circle, each waits for the ranks of each other one.
  for (size_t i = 0; i < open.size(); ++i) {
    for (size_t j = i + 1; j < open.size(); ++j) {
      if (open[i].conflict && open[j].conflict) continue;
      if (!WaitsFor(*open[i].round, open[i].missing, *open[j].round, jobs)) continue;
      if (!WaitsFor(*open[j].round, open[j].missing, *open[i].round, jobs)) continue;
      open[i].conflict = open[j].conflict = true;
    }
  }
  // All of them are described before one is given up.
  const std::vector<const Round*> stated = WhereStated();
  for (const Open& one : open) {
    std::optional<Clock::time_point>& since = one.round->conflict;
    since = one.conflict ? since.value_or(now) : std::optional<Clock::time_point>();
    if (!since.has_value() || now - *since < kConflictPatience) continue;
    one.round->cancelled =
        Conflict(one.round->request.source, Elsewhere(*one.round, one.missing, stated));
    one.round->failing = true;
  }
}

}  // namespace ckptd

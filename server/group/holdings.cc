#include "server/group/holdings.h"

#include <utility>

#include "common/base/at_once.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
void Holdings::Set(uint32_t rank, std::set<std::string> names) {
  MutexLock lock(mutex_);
  if (rank >= held_.size() || held_[rank] == names) return;
  for (const std::string& name : names) ++ranks_[name];
  for (const std::string& name : held_[rank]) DropOne(name);
  held_[rank] = std::move(names);
}

void Holdings::DropOne(const std::string& name) {
  const auto at = ranks_.find(name);
  if (--at->second == 0) ranks_.erase(at);
}

void Holdings::Add(const std::string& name, const std::set<uint32_t>& ranks) {
  MutexLock lock(mutex_);
  for (const uint32_t rank : ranks) {
    if (held_[rank].insert(name).second) ++ranks_[name];
  }
}

std::map<std::string, uint32_t> Holdings::Count(uint32_t rank,
                                                const std::set<std::string>& loading) const {
  MutexLock lock(mutex_);
  std::map<std::string, uint32_t> counts;
  if (rank >= held_.size()) return counts;
  for (const std::string& name : held_[rank]) {
    if (loading.count(name) == 0) counts.emplace(name, ranks_.at(name));
  }
  return counts;
}

std::set<uint32_t> Holdings::AskAll(const std::string& name) {
  const auto session = membership_.CurrentSession();
  std::set<uint32_t> missing;
  if (!session.has_value()) {
    for (const uint32_t rank : membership_.MissingRanks()) missing.insert(rank);
    return missing;
  }
  std::vector<absl::StatusOr<bool>> answers(session->links.size(), false);
  AtOnce(answers.size(), kMostCalls, [&](size_t i) {
    answers[i] = session->links[i]->Holds(name, Clock::now() + timing::kHoldsCall);
  });
  for (uint32_t rank = 0; rank < answers.size(); ++rank) {
    if (answers[rank].ok() && *answers[rank]) continue;
    missing.insert(rank);
    if (ReasonOf(answers[rank].status()) != reason::kRankLost) continue;
    membership_.Drop(rank, session->epoch, "it does not answer");
  }
  return missing;
}

std::set<uint32_t> Holdings::FindMissing(const std::string& name) {
  std::shared_ptr<Query> query;
  {
    MutexLock lock(mutex_);
    const auto [next, first] = next_.try_emplace(name);
    if (first) next->second = std::make_shared<Query>();
    query = next->second;
    if (!first) {
      changed_.Wait(mutex_, [&query]() { return query->answered; });
      return query->missing;
    }
    changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return asking_.count(name) == 0;
    });
    asking_.insert(name);
    next_.erase(name);
  }
  std::set<uint32_t> missing = AskAll(name);
  MutexLock lock(mutex_);
  query->missing = missing;
  query->answered = true;
  asking_.erase(name);
  changed_.NotifyAll();
  return missing;
}

}  // namespace ckptd

// Keeps which rank holds which checkpoint: from the ranks' reports, and by asking all ranks.
// Leader only. Thread-safe; calls to ranks are made without a lock.
#ifndef CKPTD_SERVER_GROUP_HOLDINGS_H_
#define CKPTD_SERVER_GROUP_HOLDINGS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/group/membership.h"

namespace ckptd {

class Holdings {
 public:
  // `membership` must outlive this.
  explicit Holdings(Membership& membership)
      : membership_(membership), held_(membership.world_size()) {}

  // `rank` holds exactly `names`. Empty after it has left.
  void Set(uint32_t rank, std::set<std::string> names);
  // A load of `name` has completed on these ranks.
  void Add(const std::string& name, const std::set<uint32_t>& ranks);
  // For each checkpoint that `rank` holds: how many ranks hold it. Without those in `loading`,
  // whose numbers change.
  std::map<std::string, uint32_t> Count(uint32_t rank, const std::set<std::string>& loading) const;

  // Asks all ranks which of them do not hold `name`. Concurrent calls share one query. A rank
  // that does not answer within seconds counts as missing, and one that is gone leaves the group.
  std::set<uint32_t> FindMissing(const std::string& name);

 private:
  struct Query {
    bool answered = false;
    std::set<uint32_t> missing;
  };
  std::set<uint32_t> AskAll(const std::string& name);
  void DropOne(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Membership& membership_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::set<std::string>> held_ ABSL_GUARDED_BY(mutex_);  // by rank
  // How many ranks hold each checkpoint. Kept up to date, because each heartbeat needs it.
  std::map<std::string, uint32_t> ranks_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> asking_ ABSL_GUARDED_BY(mutex_);
  // Calls that come after the ranks were asked share the next query.
  std::map<std::string, std::shared_ptr<Query>> next_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_HOLDINGS_H_

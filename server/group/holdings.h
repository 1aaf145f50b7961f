// Which rank holds which checkpoint: what ranks have said, and what they say when all of them are
// asked. Leader only. Thread-safe; no call to a rank is made under a lock.
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
  // `membership` outlives this.
  explicit Holdings(Membership& membership)
      : membership_(membership), held_(membership.world_size()) {}

  // A rank has said all that it holds; nothing, when it has left.
  void Set(uint32_t rank, std::set<std::string> names);
  // A load has ended on these ranks.
  void Add(const std::string& name, const std::set<uint32_t>& ranks);
  // Of what `rank` holds: on how many ranks it is. Not of `loading` ones, which change.
  std::map<std::string, uint32_t> Count(uint32_t rank, const std::set<std::string>& loading) const;

  // Asks all ranks now, once for all who ask at the same time: those that do not hold it, or do
  // not answer within seconds. One that is gone leaves the group.
  std::set<uint32_t> FindMissing(const std::string& name);

 private:
  struct Question {
    bool answered = false;
    std::set<uint32_t> missing;
  };
  std::set<uint32_t> AskAll(const std::string& name);
  void DropOne(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Membership& membership_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::set<std::string>> held_ ABSL_GUARDED_BY(mutex_);  // by rank
  // Of what is held: by how many. Each heartbeat asks, so it is not counted over all ranks then.
  std::map<std::string, uint32_t> ranks_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> asking_ ABSL_GUARDED_BY(mutex_);
  // Who came after the ranks were asked has the next answer.
  std::map<std::string, std::shared_ptr<Question>> next_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_HOLDINGS_H_

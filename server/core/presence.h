// Notices processes of a group that are no longer there, also those that were
// replaced at once.
#ifndef CKPTD_SERVER_CORE_PRESENCE_H_
#define CKPTD_SERVER_CORE_PRESENCE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ckptd {

// Not thread-safe.
class Presence {
 public:
  // Who is there now: rank -> incarnation. The ranks whose process of the last call is not.
  std::vector<uint32_t> Update(std::map<uint32_t, std::string> members) {
    std::vector<uint32_t> departed;
    for (const auto& [rank, incarnation] : members_) {
      const auto now = members.find(rank);
      if (now == members.end() || now->second != incarnation) departed.push_back(rank);
    }
    members_ = std::move(members);
    return departed;
  }

 private:
  std::map<uint32_t, std::string> members_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_PRESENCE_H_

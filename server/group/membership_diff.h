// Finds processes that have left the group, including those that were replaced at once.
#ifndef CKPTD_SERVER_GROUP_MEMBERSHIP_DIFF_H_
#define CKPTD_SERVER_GROUP_MEMBERSHIP_DIFF_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace ckptd {

// Each observer of a group has one. Not thread-safe.
class MembershipDiff {
 public:
  using Members = std::map<uint32_t, std::string>;  // rank -> incarnation

  // Sets the present members. Returns the processes that have left.
  Members Update(Members members) {
    Members departed;
    for (const auto& [rank, incarnation] : members_) {
      const auto now = members.find(rank);
      const bool gone = now == members.end() || now->second != incarnation;
      if (gone && !incarnation.empty()) departed[rank] = incarnation;
    }
    members_ = std::move(members);
    return departed;
  }
  // Applies changes: new processes, and ranks that have left (without an incarnation). Returns
  // the processes that have left.
  Members Merge(const Members& changed) {
    Members departed;
    for (const auto& [rank, incarnation] : changed) {
      std::string& known = members_[rank];
      if (!known.empty() && known != incarnation) departed[rank] = known;
      known = incarnation;
    }
    return departed;
  }

 private:
  Members members_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_GROUP_MEMBERSHIP_DIFF_H_

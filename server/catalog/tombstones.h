// Loads that failed, or ended and were dropped, before the client that asked knew their names. Not
// thread-safe: CatalogTable guards it.
#ifndef CKPTD_SERVER_CATALOG_TOMBSTONES_H_
#define CKPTD_SERVER_CATALOG_TOMBSTONES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace ckptd {

class Tombstones {
 public:
  static constexpr size_t kMost = 32;  // beyond that the oldest one goes

  // `tick`: the moment, as CatalogTable counts it.
  void Add(const std::string& name, const absl::Status& why, uint64_t tick) {
    stones_[name] = {why, tick};
    if (stones_.size() <= kMost) return;
    stones_.erase(std::min_element(
        stones_.begin(), stones_.end(),
        [](const auto& a, const auto& b) { return a.second.tick < b.second.tick; }));
  }

  // Why the load of that name ended, where that was after the moment `since`. It is forgotten.
  std::optional<absl::Status> Take(const std::string& name, uint64_t since) {
    const auto at = stones_.find(name);
    if (at == stones_.end()) return std::nullopt;
    std::optional<absl::Status> why;
    if (at->second.tick > since) why = at->second.why;
    stones_.erase(at);
    return why;
  }

 private:
  struct Stone {
    absl::Status why;
    uint64_t tick = 0;
  };
  std::map<std::string, Stone> stones_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_TOMBSTONES_H_

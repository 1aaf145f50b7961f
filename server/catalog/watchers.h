// The clients that look at a checkpoint and wait for it. Thread-safe.
#ifndef CKPTD_SERVER_CATALOG_WATCHERS_H_
#define CKPTD_SERVER_CATALOG_WATCHERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/catalog/catalog_table.h"

namespace ckptd {

class Watchers {
 public:
  explicit Watchers(CatalogTable& table) : table_(table) {}

  // Waits until the entry differs from `seen` (its version; 0 at first), which
  // is updated, or the deadline. Errors: CHECKPOINT_NOT_FOUND.
  absl::StatusOr<CheckpointInfo> Watch(const std::string& name, uint64_t& seen,
                                       Deadline deadline) const;
  // Waits until the entry is no longer LOADING, is gone, or the deadline.
  void WatchEnd(const std::string& name, Deadline deadline) const;

  // A client begins to watch the entry, and ends. While a load waits for the group, a rank's
  // proposal counts as long as its client watches: a client that has watched and is gone for
  // timing::kAbandoned has ended. Add returns the generation, for Left.
  uint64_t Add(const std::string& name);
  void Left(const std::string& name, uint64_t generation, Clock::time_point now);
  // A client asks for the entry from time to time, so watchers say nothing of whether it is there.
  void WasPolled(const std::string& name);
  // A client was told this name, and has yet to watch it.
  void ExtendGrace(const std::string& name, Clock::time_point now);
  // LOADING -> FAILED for entries whose clients are gone; their proposal ids.
  std::vector<std::string> ReapAbandoned(Clock::time_point now);

 private:
  CatalogTable& table_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_WATCHERS_H_

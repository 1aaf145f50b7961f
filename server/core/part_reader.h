// One reader's part of a load: reaches the ranks it fills (maps their memory, or
// opens streams where it cannot), then reads and places.
#ifndef CKPTD_SERVER_CORE_PART_READER_H_
#define CKPTD_SERVER_CORE_PART_READER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/comm/peer_memory.h"
#include "server/core/catalog.h"
#include "server/core/links.h"
#include "server/transfer/transfer.h"

namespace ckptd {

// A rank that a reader fills.
struct ReadTarget {
  MemberIdentity who;
  const PlannedRank* plan = nullptr;  // in the load's plan
  PrepareReply prepared;
  std::shared_ptr<MemberLink> link;  // for streams
};

// Runs on the load worker.
class PartReader {
 public:
  struct Parts {
    Catalog& catalog;  // own memory
    PeerMemory& peer_memory;
    uint32_t rank = 0;
    std::string secret;  // the group's
  };
  struct Load {
    uint64_t epoch = 0;
    std::string name;
    Deadline deadline;
    std::shared_ptr<const GroupPlan> plan;
  };
  PartReader(Parts parts, Load load, std::vector<ReadTarget> targets);

  // Maps, or opens streams to, every target. Errors name the rank.
  absl::Status Reach();
  size_t target_count() const { return targets_.size(); }
  // After Reach: the report of Read before anything is done, its ranks in the order
  // of the counters.
  ReadReport Begun() const;
  // After Reach. `progress` has room for every target.
  absl::StatusOr<ReadReport> Read(const TransferOptions& options, TransferProgress& progress);

 private:
  absl::Status ReachOne(const ReadTarget& target, TransferTarget& reached);

  const Parts parts_;
  const Load load_;
  const std::vector<ReadTarget> targets_;
  std::vector<TransferTarget> reached_;
  std::vector<const PlannedRank*> ranks_;  // of those
  std::vector<std::unique_ptr<TransferSink>> sinks_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_PART_READER_H_

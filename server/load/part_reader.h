// One reader's part of a load: reaches the ranks it fills (maps their memory, or
// opens streams where it cannot), then reads and places.
#ifndef CKPTD_SERVER_LOAD_PART_READER_H_
#define CKPTD_SERVER_LOAD_PART_READER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/catalog/catalog.h"
#include "server/collective/peer_access.h"
#include "server/protocol/links.h"
#include "server/transfer/transfer_types.h"

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
    PeerAccess peers;
    uint32_t rank = 0;
    std::string secret;  // the group's
    CommChoice comm = CommChoice::kAuto;
    std::string no_comm = {};  // why kHost, where that was not asked for; for people
  };
  struct Load {
    uint64_t epoch = 0;
    std::string name;
    Deadline deadline;
    std::shared_ptr<const GroupPlan> plan;
    // Why to give up between ranks that are mapped, each of which may take seconds; null: never.
    std::function<absl::Status()> interrupted = nullptr;
  };
  PartReader(Parts parts, Load load, std::vector<ReadTarget> targets);
  // Unmaps everything unless Keep was called: else memory of targets that failed would stay
  // allocated for as long as it is mapped here.
  ~PartReader();
  PartReader(PartReader&&) = default;

  // Maps, or opens streams to, every target; where a communicator may bring the bytes, those
  // that need it are left. Errors name the rank.
  absl::Status Connect();
  // After Connect: the ranks that are left to a communicator, ascending.
  const std::vector<uint32_t>& via_communicator() const { return via_communicator_; }
  // After Connect: bytes of this rank's own memory that it holds.
  uint64_t own_bytes() const;
  size_t target_count() const { return targets_.size(); }
  // After Connect: the report of Read before anything is done, its ranks in the order
  // of the counters.
  ReadReport Begun() const;
  // After Reach. `progress` has room for every target. `scatter` is null where nothing was
  // left.
  absl::StatusOr<ReadReport> Read(const TransferOptions& options, const ScatterCall* scatter,
                                  TransferProgress& progress);
  // The read is good: mappings are kept for later loads.
  void Keep() { kept_ = true; }
  // After Read: bytes of tensors that a communicator brought to this rank.
  uint64_t carried_bytes() const { return carried_bytes_; }

 private:
  absl::Status ConnectOne(const ReadTarget& target, TransferTarget& reached);
  // Sends to, or leaves, what could not be mapped: `why` says so, per target.
  absl::Status ConnectRemote(const std::map<size_t, std::string>& why);
  bool CanUseCommunicator(const ReadTarget& target) const;
  bool GoesViaCommunicator(uint32_t rank) const;
  absl::StatusOr<TransferResult> Scatter(const TransferOptions& options, const ScatterCall& call,
                                         TransferProgress& progress);

  const Parts parts_;
  const Load load_;
  const std::vector<ReadTarget> targets_;
  std::shared_ptr<ShardMemory> own_;  // held while it is written, should the load fail meanwhile
  std::vector<TransferTarget> reached_;
  std::vector<const PlannedRank*> ranks_;  // of those
  std::vector<std::unique_ptr<TransferSink>> sinks_;
  std::vector<uint32_t> via_communicator_;
  uint64_t carried_bytes_ = 0;
  bool kept_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_PART_READER_H_

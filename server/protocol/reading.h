// Which ranks read which part of a load, and what they have read.
#ifndef CKPTD_SERVER_PROTOCOL_READING_H_
#define CKPTD_SERVER_PROTOCOL_READING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/source/access.h"
#include "server/protocol/domain.h"
#include "server/protocol/identity.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

enum class ReaderPolicy : uint8_t {
  kRank0,    // rank 0 reads for all: storage is read once per group
  kPerNode,  // the lowest rank of each host reads for its host: once per host
  kAll,      // every rank reads an equal part for all: once per group
};
// "rank0", "per_node", "all". Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<ReaderPolicy> ParseReaderPolicy(std::string_view text);

// How bytes get from a reader to another rank.
enum class CommChoice : uint8_t {
  kAuto,  // memory that can be mapped is; the others' by communicator, or else in streams
  kHost,  // never a communicator
  kNccl,  // a communicator, whoever could be reached otherwise
};
// "auto", "host", "nccl". Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<CommChoice> ParseCommChoice(std::string_view text);

// "auto", "map", "buffer", "direct". Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<IoMode> ParseIoMode(std::string_view text);

// How a daemon reads storage, and reaches other ranks.
struct ReadingOptions {
  unsigned threads = 0;  // 0: one per core
  IoMode io_mode = IoMode::kAuto;
  CommChoice comm = CommChoice::kAuto;  // the leader's decides
  std::shared_ptr<const SourceRules> rules = std::make_shared<SourceRules>();

  // How the source of a load may be read.
  SourceAccess AccessFor(const LoadRequest& request) const {
    return {rules, request.guest, request.job};
  }
};

// One reader's share of a load: part `part` of `parts` of the work of `targets`.
struct ReaderShare {
  uint32_t rank = 0;
  uint32_t part = 0;
  uint32_t parts = 1;
  std::vector<uint32_t> targets;  // ranks, ascending
};
// `hosts` are those of the ranks in `ranks`, which lack the shard. Rank 0 reads
// under kRank0 even if it has its own.
std::vector<ReaderShare> ShareReading(ReaderPolicy policy, const std::vector<uint32_t>& ranks,
                                      const std::vector<std::string>& hosts);

// What the leader tells a member that reads. The member has prepared the load.
struct ReadOrder {
  struct Target {
    MemberIdentity who;
    uint64_t rank_digest = 0;
    PrepareReply prepared;
  };
  uint32_t part = 0;
  uint32_t parts = 1;
  std::vector<Target> targets;
  std::vector<Cohort> cohorts;  // rank form: of the targets, in their order; rule form: none

  bool empty() const { return targets.empty(); }
};

// What a reader has done.
struct ReadReport {
  struct Filled {
    uint32_t rank = 0;
    uint64_t bytes = 0;  // of tensors, placed or sent
    bool streamed = false;
    std::vector<uint64_t> digests;  // when wanted, and this reader alone placed them
  };
  uint32_t reader = 0;
  ReadCounters read;
  uint64_t exchanges = 0;  // of a communicator, that it has done its part of
  bool busy = false;       // before the next: it is not waiting for other ranks
  FileRate slowest_file = {};  // as FileTimes::Slowest
  std::vector<Filled> filled;
};
// What has been done of `begun`, which names the ranks in the order of `counters`.
ReadReport Counted(const ReadReport& begun, const TransferProgress& counters);

// A share that is being read.
struct ReadingNow {
  std::string name;  // of the checkpoint
  ReadReport done;   // so far, without digests
  bool ended = false;
};

// How far this rank has come with the share it reads, or with what a communicator brings. Thread-safe.
class ReadProgressPublisher {
 public:
  // `begun` as Counted takes it.
  void Begin(const std::string& name, ReadReport begun,
             std::shared_ptr<const TransferProgress> counters);
  // A complete end is shown until it was delivered. Otherwise a rank with less to do than others
  // would look like a straggler.
  // Nothing, where another share has begun meanwhile.
  void End(const std::string& name, bool done);
  std::optional<ReadingNow> Now() const;
  void NoteDelivered(const ReadingNow& now);

 private:
  mutable Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::string name_ ABSL_GUARDED_BY(mutex_);
  ReadReport begun_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const TransferProgress> counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_READING_H_

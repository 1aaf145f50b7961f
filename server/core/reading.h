// Who reads what of a load, and what came of it. Plain values; pure functions.
#ifndef CKPTD_SERVER_CORE_READING_H_
#define CKPTD_SERVER_CORE_READING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/domain.h"
#include "server/core/identity.h"

namespace ckptd {

enum class ReaderPolicy : uint8_t {
  kRank0,    // rank 0 reads for all: storage is read once per group
  kPerNode,  // the lowest rank of each host reads for its host: once per host
  kAll,      // every rank reads an equal part for all: once per group
};
// "rank0", "per_node", "all". Errors: InvalidArgument CONFIG_INVALID.
absl::StatusOr<ReaderPolicy> ParseReaderPolicy(std::string_view text);

// One reader's share of a load: part `part` of `parts` of the work of `targets`.
struct ReaderShare {
  uint32_t rank = 0;
  uint32_t part = 0;
  uint32_t parts = 1;
  std::vector<uint32_t> targets;  // ranks
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
    LayoutRequest layout;  // rank form: its statement; rule form: the rules
    PrepareReply prepared;
  };
  uint32_t part = 0;
  uint32_t parts = 1;
  std::vector<Target> targets;

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
  uint64_t storage_bytes = 0;
  std::vector<Filled> filled;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_READING_H_

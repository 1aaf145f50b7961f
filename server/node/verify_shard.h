// Compares the digests of a shard with those of its memory now.
#ifndef CKPTD_SERVER_NODE_VERIFY_SHARD_H_
#define CKPTD_SERVER_NODE_VERIFY_SHARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/catalog/shard_leases.h"

namespace ckptd {

struct Verification {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  std::vector<std::string> mismatched;
  std::vector<std::string> files;  // of each tensor, the file that it was read from; may be empty
};

// Blocking, at the speed of the memory; thread-safe. The shard has digests. Errors:
// FailedPrecondition TAKEN if a client took the memory meanwhile.
absl::StatusOr<Verification> VerifyShard(const std::string& name, const ShardLeases::Held& held);

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_VERIFY_SHARD_H_

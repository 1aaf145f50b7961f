// Converts what a daemon leaves for its successor: domain values and the messages of
// proto/ckptd/v1/keeper.proto. The messages may come from another version, so columns, ranges and
// enum values are checked. Pure functions.
#ifndef CKPTD_SERVER_RPC_KEPT_RECORD_H_
#define CKPTD_SERVER_RPC_KEPT_RECORD_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ckptd/v1/keeper.pb.h"
#include "server/catalog/lease_table.h"
#include "server/catalog/shard_keeper.h"

namespace ckptd {

v1::KeptCheckpoint ToProto(const KeptCheckpoint& checkpoint, const KeptSlab& slab);

struct KeptFromRecord {
  KeptCheckpoint checkpoint;
  KeptSlab slab;  // without descriptors
};
// Errors: InvalidArgument WRONG_WORLD_SIZE for another rank or world size, DataLoss DIGEST_MISMATCH for a message that cannot be.
absl::StatusOr<KeptFromRecord> FromProto(const v1::KeptCheckpoint& message, uint32_t rank,
                                         uint32_t world_size);

v1::KeptLease ToProto(const LeaseInfo& lease);
// Without process and user, which the connection tells. Errors: as above.
absl::StatusOr<LeaseInfo> FromProto(const v1::KeptLease& message);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_KEPT_RECORD_H_

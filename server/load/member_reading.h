// A member's share of a transfer, as the leader ordered it.
#ifndef CKPTD_SERVER_LOAD_MEMBER_READING_H_
#define CKPTD_SERVER_LOAD_MEMBER_READING_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/catalog/catalog.h"
#include "server/collective/peer_access.h"
#include "server/load/prepared_load.h"
#include "server/load/storage_stalls.h"
#include "server/load/worker.h"
#include "server/protocol/links.h"

namespace ckptd {

struct MemberReading {
  Catalog& catalog;
  PeerAccess peers;
  std::function<std::shared_ptr<MemberLink>(const MemberIdentity&)> connect;
  uint32_t rank = 0;
  std::string secret;  // the group's
  ReadingOptions reading;
  const std::atomic<bool>& stopping;
  ReadProgressPublisher& own;  // shows how far it is
  Worker& worker;              // that this runs on
  StorageStalls& stalls;
};

// Runs on the load worker; stops soon after the load has failed. Errors name this
// rank's part in them: SOURCE_CHANGED when the files here are not those the leader
// has read the headers of, PLAN_MISMATCH, those of PartReader.
absl::StatusOr<ReadReport> ReadForLeader(const MemberReading& parts, PreparedLoad& incoming,
                                         const ExecuteCall& call);
// For a rank that reads nothing: takes what a communicator brings, and passes it on. Errors:
// PLAN_MISMATCH, those of the communicator.
absl::Status ReceiveScatter(const MemberReading& parts, PreparedLoad& incoming,
                            const ExecuteCall& call);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_MEMBER_READING_H_

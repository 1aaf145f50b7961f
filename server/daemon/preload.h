// The load that the settings ask for. It begins when the group is complete, so that storage is
// read while trainers still start. Every rank requests it and gets the same load. A restarted
// daemon gets its shard again.
#ifndef CKPTD_SERVER_DAEMON_PRELOAD_H_
#define CKPTD_SERVER_DAEMON_PRELOAD_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/node/node.h"

namespace ckptd {

// The request that `config.load` and its options mean. `on_gpu`: this daemon keeps shards in GPU
// memory. Errors: CONFIG_INVALID.
absl::StatusOr<LoadRequest> PreloadRequest(const Config& config, bool on_gpu);

// Requests the load and waits until it has ended, or `stop` returns true. OK: the shard is here.
// Errors: the load's own; Cancelled by `stop`.
absl::Status Preload(Node& node, const LoadRequest& request, const std::function<bool()>& stop);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_PRELOAD_H_

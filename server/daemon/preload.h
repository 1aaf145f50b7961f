// The load that the settings ask for: begun when the group is complete, so that storage is read
// while trainers still start. Every rank asks for it: it is one load, and a daemon that comes
// back gets its shard again.
#ifndef CKPTD_SERVER_DAEMON_PRELOAD_H_
#define CKPTD_SERVER_DAEMON_PRELOAD_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/node/node.h"

namespace ckptd {

// What `config.load` and its options mean. `on_gpu`: where this daemon keeps shards. Errors:
// CONFIG_INVALID.
absl::StatusOr<LoadRequest> PreloadRequest(const Config& config, bool on_gpu);

// Asks for it and waits until it has ended, or `stop` says so. OK: its shard is here. Errors: the
// load's own; Cancelled by `stop`.
absl::Status Preload(Node& node, const LoadRequest& request, const std::function<bool()>& stop);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_PRELOAD_H_

// Certificates of the peer port, from files.
#ifndef CKPTD_SERVER_DAEMON_TLS_H_
#define CKPTD_SERVER_DAEMON_TLS_H_

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {

// Nothing when no --tls key is set. Errors: InvalidArgument CONFIG_INVALID for keys
// that are set in part, or a file that cannot be read or is no PEM of its kind.
absl::StatusOr<PeerSecurity> ReadPeerSecurity(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_TLS_H_

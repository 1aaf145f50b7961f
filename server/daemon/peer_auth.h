// How the daemons of a group authenticate each other on the peer port: by certificates from
// files, or by one that is made from the group key.
#ifndef CKPTD_SERVER_DAEMON_PEER_AUTH_H_
#define CKPTD_SERVER_DAEMON_PEER_AUTH_H_

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/daemon/environment.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {

// The variable that may hold the group key itself.
inline constexpr char kGroupKeyVariable[] = "CKPTD_GROUP_KEY";

// Whether `config` or the environment sets a method. If not, a group that one launcher starts can
// use a new key.
bool HasPeerAuthSetting(const Config& config, const EnvironmentReader& read);

// The certificates for the peer port. A group of one gets a key that nobody else has. Without TLS
// only for --peer-auth none. Errors: InvalidArgument CONFIG_INVALID for a larger group without
// key or certificates, two methods at once, incomplete settings, or a file that cannot be read or
// has the wrong content.
absl::StatusOr<PeerSecurity> ReadPeerSecurity(const Config& config, const EnvironmentReader& read);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_PEER_AUTH_H_

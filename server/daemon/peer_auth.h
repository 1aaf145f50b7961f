// How the daemons of a group know each other on the peer port: by certificates from
// files, or by one made of a key that all of them were given.
#ifndef CKPTD_SERVER_DAEMON_PEER_AUTH_H_
#define CKPTD_SERVER_DAEMON_PEER_AUTH_H_

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/daemon/environment.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {

// The variable that may hold the group key itself.
inline constexpr char kGroupKeyVariable[] = "CKPTD_GROUP_KEY";

// Whether `config` or the environment says how: a group that is started as a whole
// needs no more than a new key.
bool SaysPeerAuth(const Config& config, const EnvironmentReader& read);

// A group of one is given a key that nobody else has; plain connections only for
// --peer-auth none. Errors: InvalidArgument CONFIG_INVALID for a larger group without
// key or certificates, two ways at once, settings in part, or a file that cannot be
// read or is not what its key says.
absl::StatusOr<PeerSecurity> ReadPeerSecurity(const Config& config, const EnvironmentReader& read);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_PEER_AUTH_H_

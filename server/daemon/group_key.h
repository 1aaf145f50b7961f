// The group key: one text that every daemon of a group is given, and that lets
// daemons know each other. Thread-safe, no state.
#ifndef CKPTD_SERVER_DAEMON_GROUP_KEY_H_
#define CKPTD_SERVER_DAEMON_GROUP_KEY_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {

// Short keys could be guessed from a certificate made of them.
inline constexpr size_t kMinGroupKeyCharacters = 32;
inline constexpr size_t kMaxGroupKeyBytes = 4096;

// 64 random hexadecimal digits.
std::string NewGroupKey();

// A new certificate, signed with a private key (Ed25519) that is made of `key`; only
// such certificates are accepted, so both sides prove that they have the key, and
// neither shows it. White space around the key does not count. Errors: InvalidArgument CONFIG_INVALID for a key that is too short
// or too long, and none that shows any of it.
absl::StatusOr<PeerSecurity> SecurityOfGroupKey(const std::string& key);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_GROUP_KEY_H_

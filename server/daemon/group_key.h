// The group key: a text that every daemon of a group gets, with which daemons authenticate each
// other. Stateless, thread-safe.
#ifndef CKPTD_SERVER_DAEMON_GROUP_KEY_H_
#define CKPTD_SERVER_DAEMON_GROUP_KEY_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {

// 128 bits. A smaller key could be guessed from a certificate made with it.
inline constexpr size_t kMinGroupKeyDigits = 32;
inline constexpr size_t kMaxGroupKeyBytes = 4096;

// 64 random hexadecimal digits.
std::string NewGroupKey();

// A new certificate, signed with a private key (Ed25519) that is derived from `key`. Only such
// certificates are accepted. So both sides prove that they have the key, and neither reveals it.
// White space around the key does not count. Errors: InvalidArgument CONFIG_INVALID for a key
// that is not 32 to 4096 random hexadecimal digits, as far as that can be seen. They show nothing of
// the key.
absl::StatusOr<PeerSecurity> SecurityOfGroupKey(const std::string& key);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_GROUP_KEY_H_

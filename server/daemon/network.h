// Addresses of a daemon: where it listens, and how its peers reach it.
#ifndef CKPTD_SERVER_DAEMON_NETWORK_H_
#define CKPTD_SERVER_DAEMON_NETWORK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

// "host:port" to listen at for `text`: a port, which means all interfaces, or host:port. Empty for
// "0": nowhere. Errors: CONFIG_INVALID.
absl::StatusOr<std::string> ListenAddress(const std::string& text);

// The address from which this host sends to `target` (no packet is sent).
absl::StatusOr<std::string> OwnAddressTowards(const HostPort& target);

// A TCP port of the loopback interface. While `socket` is open the kernel gives it to no program
// that asks for any port, but a gRPC server that names it may listen there.
struct HeldPort {
  UniqueFd socket;
  uint16_t port = 0;
};
absl::StatusOr<HeldPort> HoldFreePort();

// Identifies the running kernel: the same in all processes of one host.
std::string BootId();

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_NETWORK_H_

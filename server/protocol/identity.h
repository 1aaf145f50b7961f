// How one daemon introduces itself to its group.
#ifndef CKPTD_SERVER_PROTOCOL_IDENTITY_H_
#define CKPTD_SERVER_PROTOCOL_IDENTITY_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace ckptd {

// The host in the address of a member that does not know its own, because it could not look the
// leader up when it started. The leader puts the host in its place that the member calls from.
inline constexpr std::string_view kUnknownHost = "[::]";

struct MemberIdentity {
  std::string job;
  std::string version;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string incarnation;
  std::string address;  // host:port of its peer server
  std::string host;     // daemons of equal hosts share memory
  int32_t pid = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_IDENTITY_H_

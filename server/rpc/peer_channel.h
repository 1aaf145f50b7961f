// How daemons of a group reach each other over TCP: channels, their security, and what a failed
// call says about the other side.
#ifndef CKPTD_SERVER_RPC_PEER_CHANNEL_H_
#define CKPTD_SERVER_RPC_PEER_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/protocol/domain.h"
#include "server/protocol/identity.h"

namespace ckptd {

// Largest message between daemons: the index of a source with millions of tensors.
inline constexpr int kMaxPeerMessage = 512 << 20;

// Mutual TLS, as PEM text. Without a certificate: no TLS.
struct PeerSecurity {
  std::string certificate;  // this daemon's, with its chain
  std::string key;
  std::string authorities;  // they sign the certificate of every daemon of the group
  std::string name;         // the name in every certificate; empty: the address of the connection

  bool enabled() const { return !certificate.empty(); }
};

// Null without TLS.
std::shared_ptr<grpc::ServerCredentials> PeerServerCredentials(const PeerSecurity& security);

// A connection of its own to `address` (host:port). The first call makes it, and it is made again
// if it is lost.
std::shared_ptr<grpc::Channel> PeerChannel(const std::string& address,
                                           const PeerSecurity& security);

// `address`, where kUnknownHost is replaced by the host that `caller` names: gRPC's text for the
// other end of a connection, such as "ipv4:10.0.0.7:40112".
std::string ReachableAddress(const std::string& address, std::string_view caller);

std::chrono::system_clock::time_point WallDeadline(Deadline deadline);

// Explains a failed call. A daemon that cannot be reached, or does not answer in time, is lost:
// Unavailable RANK_LOST, naming its rank. Errors of the daemon itself are returned unchanged.
absl::Status ExplainPeer(const grpc::Status& status, uint32_t rank, const std::string& doing);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_PEER_CHANNEL_H_

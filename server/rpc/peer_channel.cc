#include "server/rpc/peer_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <string>

#include <fmt/format.h>

#include "absl/strings/str_replace.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/grpc_status.h"

namespace ckptd {
namespace {

// The kernel closes a connection if sent data is not acknowledged for this long. Otherwise a
// write after a cable was cut would block for minutes.
constexpr int kUnacknowledgedMs = 5000;
// gRPC sets that timeout only if its own pings are on. Pings would queue after megabytes on a
// slow link and take it for dead, so they are made rare.
constexpr int kPingMs = 3'600'000;
// One attempt to connect. The kernel sends a lost first packet again after 1 s. A shorter attempt
// would take a lossy link for a lost rank.
constexpr int kConnectMs = 2500;
// One look-up of a name, which is half of the time to join. Addresses found by then are used: a name
// server may answer for IPv4 and be silent about IPv6.
constexpr int kLookUpMs = 1500;

// Chooses advice by gRPC's error text, because gRPC has no other details.
std::string WhatToTry(const std::string& why) {
  const auto says = [&why](const char* words) { return why.find(words) != std::string::npos; };
  if (says("andshake")) {
    return "see whether it is stopped or overloaded; else give every daemon the same group key, or "
           "--tls-cert, --tls-key and --tls-ca that fit together and are valid by the clocks of both "
           "hosts (`date`)";
  }
  if (says("peer certificate")) {
    return "its --tls-cert must bear the address it is reached by, or give all daemons the name "
           "in it as --tls-name";
  }
  // A port with TLS answers a caller without TLS this way.
  if (says("Socket closed")) {
    return "look at its log, and see whether it has a group key or certificates (--tls-cert) and "
           "this daemon none";
  }
  return "look at its log, then try again";
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> PeerServerCredentials(const PeerSecurity& security) {
  if (!security.enabled()) return nullptr;
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security.authorities;
  options.pem_key_cert_pairs.push_back({security.key, security.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::Channel> PeerChannel(const std::string& address,
                                           const PeerSecurity& security) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxPeerMessage);
  arguments.SetMaxSendMessageSize(kMaxPeerMessage);
  // Short, so that a restarted daemon is found at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // gRPC uses it as the limit of one attempt
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, kLookUpMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kUnacknowledgedMs);
  if (!security.enabled()) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!security.name.empty()) arguments.SetSslTargetNameOverride(security.name);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security.authorities;
  options.pem_private_key = security.key;
  options.pem_cert_chain = security.certificate;
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

std::string ReachableAddress(const std::string& address, std::string_view caller) {
  const size_t scheme = caller.find(':');
  const size_t port = caller.rfind(':');
  if (address.rfind(kUnknownHost, 0) != 0 || scheme == port) return address;
  const std::string_view family = caller.substr(0, scheme);
  if (family != "ipv4" && family != "ipv6") return address;
  // gRPC writes the brackets of IPv6 as in a URI.
  const std::string host = absl::StrReplaceAll(
      std::string(caller.substr(scheme + 1, port - scheme - 1)), {{"%5B", "["}, {"%5D", "]"}});
  return host + address.substr(kUnknownHost.size());
}

std::chrono::system_clock::time_point WallDeadline(Deadline deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - Clock::now());
}

absl::Status ExplainPeer(const grpc::Status& status, uint32_t rank, const std::string& doing) {
  if (status.ok()) return absl::OkStatus();
  const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                    status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                    status.error_code() == grpc::StatusCode::CANCELLED;
  if (!status.error_details().empty()) return FromGrpc(status);
  if (!lost) {
    // gRPC itself refused the call, or another program listens there.
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kRankFailed,
                     fmt::format("{}: rank {} refused the call ({}); run the same ckptd on every "
                                 "rank",
                                 doing, rank, status.error_message()),
                     {{"rank", std::to_string(rank)}});
  }
  return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost,
                   fmt::format("{}: rank {} does not answer ({}); {}", doing, rank,
                               status.error_message(), WhatToTry(status.error_message())),
                   {{"rank", std::to_string(rank)}});
}

}  // namespace ckptd

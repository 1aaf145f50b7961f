// The group's links over gRPC: implements MemberLink and LeaderLink.
#ifndef CKPTD_SERVER_RPC_LINKS_H_
#define CKPTD_SERVER_RPC_LINKS_H_

#include <memory>
#include <string>

#include "server/protocol/links.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {

// Both connect with their first call, and reconnect by themselves. `address` of the leader may be a
// name: it is looked up again for each attempt to join.
std::shared_ptr<MemberLink> ConnectToMember(const MemberIdentity& member,
                                            const PeerSecurity& security);
std::shared_ptr<LeaderLink> ConnectToLeader(const std::string& address,
                                            const PeerSecurity& security);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_LINKS_H_

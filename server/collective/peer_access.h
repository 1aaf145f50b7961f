// The ways in which a reader reaches other ranks.
#ifndef CKPTD_SERVER_COLLECTIVE_PEER_ACCESS_H_
#define CKPTD_SERVER_COLLECTIVE_PEER_ACCESS_H_

#include "server/collective/communicator_cache.h"
#include "server/comm/peer_memory.h"
#include "server/memory/memory.h"

namespace ckptd {

struct PeerAccess {
  PeerMemory& memory;         // maps peers' memory
  TransitAllocator& transit;  // this rank's own
  CommunicatorCache& comms;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_PEER_ACCESS_H_

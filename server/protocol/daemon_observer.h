// The seam through which what one daemon does beside loads is observed: clients that attach, and
// memory that is evicted. The rooms that call it include no metrics library.
#ifndef CKPTD_SERVER_PROTOCOL_DAEMON_OBSERVER_H_
#define CKPTD_SERVER_PROTOCOL_DAEMON_OBSERVER_H_

#include <chrono>
#include <cstdint>

#include "common/base/attach_mode.h"

namespace ckptd {

// Called on any thread, perhaps under locks. Implementations do not block, do not fail and call
// nothing of the daemon.
class DaemonObserver {
 public:
  virtual ~DaemonObserver() = default;
  // The descriptors of a shard have left for a client, that long after it was given its lease.
  virtual void OnAttached(AttachMode mode, std::chrono::nanoseconds took) = 0;
  // A checkpoint's memory of `bytes` was taken for another one.
  virtual void OnEvicted(uint64_t bytes) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_DAEMON_OBSERVER_H_

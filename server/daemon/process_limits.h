// Limits of this process that a daemon cannot start under.
#ifndef CKPTD_SERVER_DAEMON_PROCESS_LIMITS_H_
#define CKPTD_SERVER_DAEMON_PROCESS_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace ckptd {

// What a daemon has after its start, and some more: it has 25 threads and 1.3 GB of addresses then.
inline constexpr size_t kThreadsToStart = 32;
inline constexpr uint64_t kAddressesToStart = uint64_t{3} << 29;

// Whether this process may have `threads` threads at a time, and `bytes` of addresses where those
// are limited (ulimit -v). gRPC ends a process that gets no thread, without a sentence. Tries it
// out, so it knows all limits: of the user, the control group and the system. Errors:
// InvalidArgument CONFIG_INVALID.
absl::Status CheckProcessLimits(size_t threads = kThreadsToStart, uint64_t bytes = kAddressesToStart);

// Has the process end with one sentence, in place of an abort, where it gets no memory.
void SayWhenMemoryEnds();

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_PROCESS_LIMITS_H_

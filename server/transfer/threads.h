// Threads for work that is shared out among all cores.
#ifndef CKPTD_SERVER_TRANSFER_THREADS_H_
#define CKPTD_SERVER_TRANSFER_THREADS_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace ckptd {

// Cores this process may use, which containers cut down; at least two, so that
// one thread's wait for storage is another's time to copy.
unsigned DefaultThreads();

// Calls work(0) .. work(count - 1), on a thread each, and waits for all of them. When
// the system has no more threads, fewer of them will do. Errors: ResourceExhausted
// NO_MEMORY when there is none at all.
absl::Status RunOnThreads(unsigned count, absl::FunctionRef<void(unsigned)> work);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_THREADS_H_

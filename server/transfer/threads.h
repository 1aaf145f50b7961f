// How many threads share out work that all cores can do.
#ifndef CKPTD_SERVER_TRANSFER_THREADS_H_
#define CKPTD_SERVER_TRANSFER_THREADS_H_

namespace ckptd {

// Cores this process may use, which containers cut down; at least two, so that
// one thread's wait for storage is another's time to copy.
unsigned DefaultThreads();

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_THREADS_H_

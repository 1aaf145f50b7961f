// Tells how many threads should share work that all cores can do.
#ifndef CKPTD_SERVER_TRANSFER_THREADS_H_
#define CKPTD_SERVER_TRANSFER_THREADS_H_

namespace ckptd {

// The number of cores that this process may use, which containers limit. At least two, so that
// one thread can copy while the other waits for storage.
unsigned DefaultThreads();

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_THREADS_H_

// Work in a stream that something else does: the kernels of the fake NCCL. No part of the
// driver API, and by dlsym only.
#ifndef CKPTD_TESTS_FAKES_CUDA_EXTERNAL_H_
#define CKPTD_TESTS_FAKES_CUDA_EXTERNAL_H_

#include <cstddef>

#include "tests/fakes/cuda/driver_api.h"

#pragma GCC visibility push(default)
extern "C" {

// Memory that the work reads, or writes; it must be there when its turn comes.
struct cuFakeRange {
  CUdeviceptr address;
  std::size_t bytes;
  bool write;
};

// Called once, from any thread and without a lock, when everything before it in the stream
// is done. Must not block, nor call the driver. A null ticket: the context is lost, the work is
// never to be done.
using cuFakeStart = void (*)(void* data, void* ticket);

// Queues the work and returns at once, like a launch: no mode of the fake waits for it here.
CUresult cuFakeEnqueue(CUstream stream, const cuFakeRange* ranges, std::size_t count,
                       cuFakeStart start, void* data);

// Ends what was started, once for each ticket, from any thread. An error breaks the context.
void cuFakeFinish(void* ticket, CUresult error);

}  // extern "C"
#pragma GCC visibility pop

#endif  // CKPTD_TESTS_FAKES_CUDA_EXTERNAL_H_

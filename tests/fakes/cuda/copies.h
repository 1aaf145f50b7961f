// Copies and fills, whatever call asked for them.
#ifndef CKPTD_TESTS_FAKES_CUDA_COPIES_H_
#define CKPTD_TESTS_FAKES_CUDA_COPIES_H_

#include <cstddef>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {

enum class Place { kHost, kDevice, kEither };

struct Side {
  Address address = 0;
  Place place = Place::kEither;  // kEither: what the address says
  std::size_t pitch = 0;         // bytes from one row to the next
  int device = -1;               // whose engine touches it; -1: the stream's
};

struct CopyJob {
  Side to;
  Side from;
  std::size_t width = 0;  // bytes of a row
  std::size_t height = 1;
  bool async = true;
};

// A copy on a stream, with the waiting that "API synchronization behavior" (CUDA driver API)
// says for host memory of each kind.
CUresult SubmitCopy(Context& context, CUstream stream, CopyJob job);

// `count` elements of 1 or 4 bytes.
CUresult SubmitFill(Context& context, CUstream stream, Address to, unsigned value,
                    std::size_t element, std::size_t count, bool async);

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_COPIES_H_

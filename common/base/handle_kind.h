// How memory of a shard is handed to a client. Shared by the daemon's seams and the
// clients.
#ifndef CKPTD_COMMON_BASE_HANDLE_KIND_H_
#define CKPTD_COMMON_BASE_HANDLE_KIND_H_

#include <cstdint>

namespace ckptd {

// Values equal ckptd.v1.HandleKind.
enum class HandleKind : uint8_t {
  kMemfd = 1,  // host memory: descriptors of memfd segments
  kVmmFd = 2,  // device memory: one descriptor of a CUDA allocation (cuMemCreate)
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_HANDLE_KIND_H_

// How memory of a shard is handed to a client. Used by the daemon's seams and by the clients.
#ifndef CKPTD_COMMON_BASE_HANDLE_KIND_H_
#define CKPTD_COMMON_BASE_HANDLE_KIND_H_

#include <cstdint>
#include <string_view>

namespace ckptd {

// Values equal ckptd.v1.HandleKind.
enum class HandleKind : uint8_t {
  kMemfd = 1,  // host memory: descriptors of memfd segments
  kVmmFd = 2,  // device memory: one descriptor of a CUDA allocation (cuMemCreate)
  // Device memory: 64 bytes that identify a CUDA allocation (cuMemAlloc). Its maker keeps it.
  kCudaIpc = 3,
};

// Whether clients only open memory that stays the daemon's and ends with it. A load has such memory
// only by asking for it, a client must name the kind to get it, and nobody can take it over.
constexpr bool EndsWithDaemon(HandleKind kind) { return kind == HandleKind::kCudaIpc; }

// The name in the API, without its prefix.
constexpr std::string_view NameOf(HandleKind kind) {
  switch (kind) {
    case HandleKind::kMemfd: return "MEMFD";
    case HandleKind::kVmmFd: return "VMM_FD";
    case HandleKind::kCudaIpc: return "CUDA_IPC";
  }
  return "UNSPECIFIED";
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_HANDLE_KIND_H_

#include "server/rpc/handles.h"

#include <algorithm>
#include <vector>

namespace ckptd {

bool Accepts(const v1::AcquireShardRequest& request, HandleKind kind) {
  const auto& kinds = request.accepted_kinds();
  if (kinds.empty()) return !EndsWithDaemon(kind);
  return std::find(kinds.begin(), kinds.end(), static_cast<int>(kind)) != kinds.end();
}

std::string_view WhatToTry(HandleKind kind) {
  switch (kind) {
    case HandleKind::kMemfd:
      return "list HANDLE_KIND_MEMFD";
    case HandleKind::kVmmFd:
      return "list HANDLE_KIND_VMM_FD; Python clients: pip install ckptd[cuda]";
    case HandleKind::kCudaIpc:
      break;
  }
  return "list HANDLE_KIND_CUDA_IPC if it can keep what that asks (proto/README.md), or load the "
         "source without handle_kind";
}

void FillHandle(const ShardMemory& memory, AttachMode mode, const std::string& device,
                const std::string& fd_socket, v1::AcquireShardResponse& response) {
  const std::vector<Segment> segments = memory.Segments();
  // Device memory has one segment, or none.
  const uint64_t allocation = segments.empty() ? 0 : segments.back().bytes;
  const bool writable = mode == AttachMode::kExclusive;
  switch (memory.kind()) {
    case HandleKind::kCudaIpc: {
      v1::CudaIpcHandle& ipc = *response.mutable_cuda_ipc();
      ipc.set_fd_socket(fd_socket);
      ipc.set_device_uuid(device);
      ipc.set_allocation_bytes(allocation);
      ipc.set_handle(memory.ipc_handle());
      return;
    }
    case HandleKind::kVmmFd: {
      v1::VmmFdHandle& vmm = *response.mutable_vmm_fd();
      vmm.set_fd_socket(fd_socket);
      vmm.set_device_uuid(device);
      vmm.set_allocation_bytes(allocation);
      vmm.set_writable(writable);
      return;
    }
    case HandleKind::kMemfd: {
      v1::MemfdHandle& memfd = *response.mutable_memfd();
      memfd.set_fd_socket(fd_socket);
      for (const Segment& segment : segments) memfd.add_segment_bytes(segment.bytes);
      memfd.set_writable(writable);
      return;
    }
  }
}

}  // namespace ckptd

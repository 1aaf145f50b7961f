// Legacy sharing: 64 bytes that name memory of cuMemAlloc.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

constexpr char kMagic[8] = {'f', 'a', 'k', 'e', 'i', 'p', 'c', '1'};
constexpr std::size_t kNameBytes = CU_IPC_HANDLE_SIZE - sizeof kMagic;

CUresult Get(Address address, CUipcMemHandle* out) {
  Driver& d = driver();
  const auto found = d.space.blocks.find(address);
  // cuIpcGetMemHandle takes the "base pointer to previously allocated device memory" of
  // cuMemAlloc. Reference, section 1.2 row 3: memory of cuMemCreate is not capable of it; 3.3:
  // nor is memory that was itself imported.
  if (out == nullptr || found == d.space.blocks.end() || found->second.kind != BlockKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!d.store.shared()) return CUDA_ERROR_NOT_SUPPORTED;
  const std::string name = found->second.memory->name.Text();
  if (name.size() >= kNameBytes) return CUDA_ERROR_INVALID_VALUE;
  found->second.memory->ipc_exported = true;
  *out = {};
  std::memcpy(out->reserved, kMagic, sizeof kMagic);
  std::memcpy(out->reserved + sizeof kMagic, name.data(), name.size());
  return CUDA_SUCCESS;
}

std::optional<MemoryName> Read(const CUipcMemHandle& handle) {
  if (std::memcmp(handle.reserved, kMagic, sizeof kMagic) != 0) return std::nullopt;
  const char* name = handle.reserved + sizeof kMagic;
  return MemoryName::Parse(std::string(name, ::strnlen(name, kNameBytes)));
}

// What is open already, in this process, of the same memory; null: nothing.
std::pair<const Address, Block>* Opened(const MemoryName& name) {
  for (auto& entry : driver().space.blocks) {
    const Block& block = entry.second;
    if (block.kind == BlockKind::kImported && block.memory->name.Text() == name.Text())
      return &entry;
  }
  return nullptr;
}

CUresult Open(Call& call, Context& context, const CUipcMemHandle& handle, unsigned flags,
              CUdeviceptr* out) {
  Driver& d = driver();
  // "Must be specified as CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS."
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  const auto name = Read(handle);
  if (!name) return CUDA_ERROR_INVALID_HANDLE;
  // Reference, section 1.2 rows 4 and 5: the exporter cannot, and it is known by its pid.
  if (name->pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  // "If the memory handle has already been opened by the current context, the reference count on
  // the handle is incremented by 1 and the existing device pointer is returned."
  if (auto* opened = Opened(*name)) {
    ++opened->second.opens;
    *out = opened->first;
    return CUDA_SUCCESS;
  }
  const int device = d.DeviceOf(name->gpu);
  if (device != context.device && !d.config.peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  Block block;
  block.kind = BlockKind::kImported;
  block.device = context.device;
  block.memory = d.store.Open(*name);
  if (block.memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  block.bytes = name->bytes;
  block.serial = d.space.next_serial++;
  const Address address = d.space.Reserve(name->bytes, kGranularity, 0);
  if (address == 0 || !Space::Show(*block.memory, address, name->bytes, PROT_READ | PROT_WRITE)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  d.space.blocks[address] = std::move(block);
  *out = address;
  call.Note("address", address);
  return CUDA_SUCCESS;
}

CUresult Close(Address address) {
  Driver& d = driver();
  const auto found = d.space.blocks.find(address);
  if (found == d.space.blocks.end() || found->second.kind != BlockKind::kImported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found->second.opens > 1) {
    --found->second.opens;
    return CUDA_SUCCESS;
  }
  const std::size_t bytes = found->second.bytes;
  // Nothing promises that it waits.
  if (d.streams.Busy({address, bytes})) {
    TraceViolation("imported memory is closed while queued work uses it");
    return CUDA_ERROR_INVALID_VALUE;
  }
  d.space.Retire(address, bytes);
  d.space.blocks.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return Call("cuIpcGetMemHandle", {{"address", address}}).RunInContext([&](Call&, Context&) {
    return Get(address, handle);
  });
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return Call("cuIpcOpenMemHandle", {{"flags", flags}})
      .RunInContext([&](Call& call, Context& context) {
        return Open(call, context, handle, flags, address);
      });
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
  // Reference, section 1.2 row 16: closing needs a current context.
  return Call("cuIpcCloseMemHandle", {{"address", address}}).RunInContext([&](Call&, Context&) {
    return Close(address);
  });
}

}  // extern "C"

// Device memory of cuMemAlloc, and pinned host memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

std::size_t RoundedUp(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

CUresult Allocate(Call& call, const Context& context, std::size_t bytes, CUdeviceptr* out) {
  Driver& d = driver();
  // cuMemAlloc: "If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE."
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t gpu = d.devices[static_cast<std::size_t>(context.device)].gpu;
  if (bytes > d.config.gpus[gpu].bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  // Blocks of 2 MiB each: the real driver would put several small ones into one.
  const std::size_t whole = RoundedUp(bytes, kGranularity);
  MemoryPtr memory = d.store.Create(MemoryKind::kLegacy, gpu, whole);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const Address address = d.space.Reserve(whole, kGranularity, 0);
  if (address == 0 || !Space::Show(*memory, address, whole, PROT_READ | PROT_WRITE)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Block block;
  block.bytes = bytes;
  block.device = context.device;
  block.memory = std::move(memory);
  block.serial = d.space.next_serial++;
  d.space.blocks[address] = std::move(block);
  *out = address;
  call.Note("address", address);
  return CUDA_SUCCESS;
}

// The block of one of `kinds` that starts at an address.
std::map<Address, Block>::iterator BlockStarting(Address address, BlockKind kind) {
  auto found = driver().space.blocks.find(address);
  const bool good = found != driver().space.blocks.end() && found->second.kind == kind;
  return good ? found : driver().space.blocks.end();
}

CUresult Free(Address address) {
  Driver& d = driver();
  // cuMemFree: of null it does nothing, as free().
  if (address == 0) return CUDA_SUCCESS;
  // "this API may perform implicit synchronization" for such memory: the real one does.
  if (BlockStarting(address, BlockKind::kDevice) != d.space.blocks.end()) {
    d.streams.FinishAll(nullptr);
  }
  const auto block = BlockStarting(address, BlockKind::kDevice);
  if (block == d.space.blocks.end()) {
    if (d.space.WasFreed(address)) TraceViolation("cuMemFree of memory that was freed before");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MemoryName name = block->second.memory->name;
  const bool exported = block->second.memory->ipc_exported;
  d.space.Retire(address, name.bytes);
  d.space.blocks.erase(block);
  // cuIpcOpenMemHandle: to free it before the importers closed it is "undefined behavior".
  if (exported && d.store.Held(name)) {
    TraceViolation("cuMemFree of memory that another process has open");
  }
  return CUDA_SUCCESS;
}

CUresult AllocatePinned(Call& call, const Context& context, std::size_t bytes, void** out) {
  Driver& d = driver();
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t whole = RoundedUp(bytes, static_cast<std::size_t>(::getpagesize()));
  void* address =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Block block;
  block.kind = BlockKind::kPinned;
  block.bytes = bytes;
  block.device = context.device;
  block.serial = d.space.next_serial++;
  d.space.blocks[reinterpret_cast<Address>(address)] = block;
  *out = address;
  call.Note("address", address);
  return CUDA_SUCCESS;
}

// Takes the block out of use unless queued work needs it.
CUresult Unpin(Address address, BlockKind kind, CUresult unknown) {
  Driver& d = driver();
  const auto block = BlockStarting(address, kind);
  if (block == d.space.blocks.end()) return unknown;
  // Neither cuMemFreeHost nor cuMemHostUnregister promises to wait.
  if (d.streams.Busy({address, block->second.bytes})) {
    TraceViolation("pinned host memory goes away while queued work uses it");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (kind == BlockKind::kPinned) d.space.Retire(address, block->second.bytes);
  d.space.blocks.erase(block);
  return CUDA_SUCCESS;
}

// Whether the process can use all of the range, for writing too unless `read_only`.
bool HostRangeIsUsable(Address address, std::size_t bytes, bool read_only) {
  std::ifstream maps("/proc/self/maps");
  Address at = address;
  // Ordered by address: "7f00-7f10 rw-p ...".
  for (std::string line; at < address + bytes && std::getline(maps, line);) {
    Address first = 0;
    Address end = 0;
    char access[3] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %2c", &first, &end, access) != 3 || end <= at) continue;
    if (first > at || access[0] != 'r' || (access[1] != 'w' && !read_only)) return false;
    at = end;
  }
  return at >= address + bytes;
}

CUresult Register(const Context& context, Address address, std::size_t bytes, unsigned flags) {
  Driver& d = driver();
  constexpr unsigned kKnown =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
  if (address == 0 || bytes == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  // "this flag is required in order to register memory mapped to the CPU as read-only".
  if (!HostRangeIsUsable(address, bytes, read_only)) return CUDA_ERROR_INVALID_VALUE;
  const auto next = d.space.blocks.lower_bound(address);
  const bool overlaps = d.space.BlockAt(address) != nullptr ||
                        (next != d.space.blocks.end() && next->first < address + bytes);
  if (overlaps) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Block block;
  block.kind = BlockKind::kRegistered;
  block.bytes = bytes;
  block.device = context.device;
  block.read_only = read_only;
  block.serial = d.space.next_serial++;
  d.space.blocks[address] = block;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
  return Call("cuMemGetInfo", {}).RunInContext([&](Call&, Context& context) -> CUresult {
    Driver& d = driver();
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t gpu = d.devices[static_cast<std::size_t>(context.device)].gpu;
    const std::uint64_t used = d.store.Used(gpu);
    *total = d.config.gpus[gpu].bytes;
    *free = used < *total ? *total - used : 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  return Call("cuMemAlloc", {{"bytes", bytes}}).RunInContext([&](Call& call, Context& context) {
    return Allocate(call, context, bytes, address);
  });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
  return Call("cuMemFree", {{"address", address}}).RunInContext([&](Call&, Context&) {
    return Free(address);
  });
}

CUresult CUDAAPI cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  const Fields fields = {{"bytes", bytes}, {"flags", flags}};
  return Call("cuMemHostAlloc", fields).RunInContext([&](Call& call, Context& context) {
    return AllocatePinned(call, context, bytes, address);
  });
}

CUresult CUDAAPI cuMemAllocHost(void** address, std::size_t bytes) {
  return Call("cuMemAllocHost", {{"bytes", bytes}}).RunInContext([&](Call& call, Context& context) {
    return AllocatePinned(call, context, bytes, address);
  });
}

CUresult CUDAAPI cuMemFreeHost(void* address) {
  return Call("cuMemFreeHost", {{"address", address}}).RunInContext([&](Call&, Context&) {
    return Unpin(reinterpret_cast<Address>(address), BlockKind::kPinned, CUDA_ERROR_INVALID_VALUE);
  });
}

CUresult CUDAAPI cuMemHostRegister(void* address, std::size_t bytes, unsigned flags) {
  const Fields fields = {{"address", address}, {"bytes", bytes}, {"flags", flags}};
  return Call("cuMemHostRegister", fields).RunInContext([&](Call&, Context& context) {
    return Register(context, reinterpret_cast<Address>(address), bytes, flags);
  });
}

CUresult CUDAAPI cuMemHostUnregister(void* address) {
  return Call("cuMemHostUnregister", {{"address", address}}).RunInContext([&](Call&, Context&) {
    return Unpin(reinterpret_cast<Address>(address), BlockKind::kRegistered,
                 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* out, void* address, unsigned flags) {
  return Call("cuMemHostGetDevicePointer", {{"address", address}})
      .RunInContext([&](Call&, Context&) -> CUresult {
        const auto host = reinterpret_cast<Address>(address);
        if (out == nullptr || flags != 0 || !driver().space.Pinned(host, 1)) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        // Unified addressing (CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 1).
        *out = host;
        return CUDA_SUCCESS;
      });
}

}  // extern "C"

// Virtual memory management: addresses, mappings and who may use them.
#include <sys/mman.h>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

bool Whole(std::uint64_t value) { return value % kGranularity == 0; }

// The reservation that holds all of the range.
bool Reserved(Address address, std::size_t bytes) {
  const auto& reservations = driver().space.reservations;
  auto after = reservations.upper_bound(address);
  if (after == reservations.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return address - start < size && bytes <= size - (address - start);
}

CUresult Map(Address address, std::size_t bytes, std::size_t offset,
             CUmemGenericAllocationHandle handle) {
  Driver& d = driver();
  const auto held = d.handles.find(handle);
  const MemoryPtr memory = held == d.handles.end() ? nullptr : held->second;
  // cuMemMap: "offset: currently must be zero"; all are multiples of the granularity; within the
  // memory; in a reservation, at a place "not currently mapped".
  if (offset != 0 || bytes == 0 || !Whole(bytes) || !Whole(address) || memory == nullptr ||
      bytes > memory->name.bytes || !Reserved(address, bytes) ||
      d.space.AnyMapped(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // "calling cuMemMap does not make the address accessible".
  if (!Space::Show(*memory, address, bytes, PROT_NONE)) return CUDA_ERROR_OUT_OF_MEMORY;
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.memory = memory;
  mapping.access.assign(d.devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  mapping.serial = d.space.next_serial++;
  d.space.mappings[address] = std::move(mapping);
  return CUDA_SUCCESS;
}

// Whether the range is exactly a row of mappings: it cuts none in two.
bool ExactlyMapped(Address address, std::size_t bytes) {
  const Space& space = driver().space;
  if (bytes == 0 || space.mappings.count(address) == 0 || !space.AllMapped(address, bytes))
    return false;
  const auto* last = space.MappingAt(address + bytes - 1);
  return last->first + last->second.bytes == address + bytes;
}

CUresult Unmap(Address address, std::size_t bytes) {
  Driver& d = driver();
  // cuMemUnmap: "The range must be the entire contiguous address range that was mapped to."
  if (!ExactlyMapped(address, bytes)) {
    if (d.space.WasFreed(address)) TraceViolation("cuMemUnmap of addresses that were freed");
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Nothing promises that it waits for work (reference, section 3.2: synchronise first).
  if (d.streams.Busy({address, bytes})) {
    TraceViolation("memory is unmapped while queued work uses it");
    return CUDA_ERROR_INVALID_VALUE;
  }
  ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  d.space.mappings.erase(d.space.mappings.lower_bound(address),
                         d.space.mappings.lower_bound(address + bytes));
  return CUDA_SUCCESS;
}

CUresult CheckAccess(const CUmemAccessDesc& desc, Address address, std::size_t bytes) {
  Driver& d = driver();
  if (desc.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  const Device* device = d.Find(desc.location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const auto flags = desc.flags;
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (Address at = address; at < address + bytes;) {
    const auto* mapping = d.space.MappingAt(at);
    // Reference, section 2.1: peers are given access by this call, if they can have any.
    if (mapping->second.memory->name.gpu != device->gpu && !d.config.peers) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    at = mapping->first + mapping->second.bytes;
  }
  return CUDA_SUCCESS;
}

// The process may do with a mapping what some device may.
void Protect(Address address, const Mapping& mapping) {
  int protection = PROT_NONE;
  for (const CUmemAccess_flags access : mapping.access) {
    if (access == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
    if (access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_READ | PROT_WRITE;
  }
  ::mprotect(reinterpret_cast<void*>(address), mapping.bytes, protection);
}

CUresult SetAccess(Address address, std::size_t bytes, const CUmemAccessDesc* desc,
                   std::size_t count) {
  Driver& d = driver();
  // cuMemSetAccess: "The range must be a fully mapped address range containing all allocations".
  if (desc == nullptr || count == 0 || !ExactlyMapped(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const CUresult good = CheckAccess(desc[i], address, bytes);
    if (good != CUDA_SUCCESS) return good;
  }
  const auto end = d.space.mappings.lower_bound(address + bytes);
  for (auto mapping = d.space.mappings.find(address); mapping != end; ++mapping) {
    for (std::size_t i = 0; i < count; ++i) {
      mapping->second.access[static_cast<std::size_t>(desc[i].location.id)] = desc[i].flags;
    }
    Protect(mapping->first, mapping->second);
  }
  return CUDA_SUCCESS;
}

CUresult Reserve(Call& call, std::size_t bytes, std::size_t alignment, Address hint,
                 CUdeviceptr* out) {
  Driver& d = driver();
  // Its text asks for multiples of the page and a power of two; drivers of today ask for
  // multiples of the granularity.
  const bool power = (alignment & (alignment - 1)) == 0;
  if (out == nullptr || bytes == 0 || !Whole(bytes) || !power) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t aligned = alignment < kGranularity ? kGranularity : alignment;
  const Address address = d.space.Reserve(bytes, aligned, hint);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  d.space.reservations[address] = bytes;
  *out = address;
  call.Note("address", address);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                                     CUdeviceptr hint, unsigned long long flags) {
  return Call("cuMemAddressReserve", {{"bytes", bytes}}).Run([&](Call& call) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return Reserve(call, bytes, alignment, hint, address);
  });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const Fields fields = {{"address", address}, {"bytes", bytes}};
  return Call("cuMemAddressFree", fields).Run([&](Call&) -> CUresult {
    Space& space = driver().space;
    const auto found = space.reservations.find(address);
    // "The size must match what was given to memAddressReserve and the ptr [...] what was
    // returned"; nothing may be mapped there any more.
    if (found == space.reservations.end() || found->second != bytes ||
        space.AnyMapped(address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    space.reservations.erase(found);
    space.Retire(address, bytes);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const Fields fields = {{"address", address}, {"bytes", bytes}, {"handle", handle}};
  return Call("cuMemMap", fields).Run([&](Call&) -> CUresult {
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : Map(address, bytes, offset, handle);
  });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  const Fields fields = {{"address", address}, {"bytes", bytes}};
  return Call("cuMemUnmap", fields).Run([&](Call&) { return Unmap(address, bytes); });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* desc,
                                std::size_t count) {
  Fields fields = {{"address", address}, {"bytes", bytes}, {"count", count}};
  if (desc != nullptr && count > 0) fields.emplace_back("access", desc[0].flags);
  return Call("cuMemSetAccess", fields).Run([&](Call&) {
    return SetAccess(address, bytes, desc, count);
  });
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr address) {
  return Call("cuMemGetAccess", {{"address", address}}).Run([&](Call&) -> CUresult {
    const auto* mapping = driver().space.MappingAt(address);
    if (flags == nullptr || location == nullptr || mapping == nullptr ||
        location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (driver().Find(location->id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *flags = mapping->second.access[static_cast<std::size_t>(location->id)];
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

// Virtual memory management: physical memory and its sharing.
#include <fcntl.h>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

constexpr auto kPosix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The handle of a piece of memory: the same one each time, and never another piece's.
CUmemGenericAllocationHandle Hold(const MemoryPtr& memory) {
  if (memory->handle == 0) memory->handle = driver().space.next_serial++;
  ++memory->handle_refs;
  driver().handles[memory->handle] = memory;
  return memory->handle;
}

MemoryPtr Find(CUmemGenericAllocationHandle handle) {
  const auto found = driver().handles.find(handle);
  return found == driver().handles.end() ? nullptr : found->second;
}

// Our devices only: host memory by cuMemCreate is not imitated.
CUresult CheckProperties(const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (driver().Find(prop->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  // Attributes say what there is (reference, section 2.1); 128, fabric handles, is not.
  const int kinds = prop->requestedHandleTypes;
  const auto has = [&](CUdevice_attribute attribute) {
    return AnswerAttribute(attribute, *driver().Find(prop->location.id)) != 0;
  };
  const bool good =
      (kinds & ~int{kPosix}) == 0 &&
      has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
      (kinds == 0 || has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) &&
      (prop->allocFlags.gpuDirectRDMACapable == 0 ||
       has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
  return good ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Create(Call& call, std::size_t bytes, const CUmemAllocationProp* prop,
                CUmemGenericAllocationHandle* out) {
  Driver& d = driver();
  const CUresult good = CheckProperties(prop);
  if (good != CUDA_SUCCESS) return good;
  // cuMemCreate: the size "must be a multiple of the value given via
  // cuMemGetAllocationGranularity".
  if (out == nullptr || bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryPtr memory = d.store.Create(MemoryKind::kVmm, d.Find(prop->location.id)->gpu, bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->exportable = prop->requestedHandleTypes == kPosix;
  *out = Hold(memory);
  call.Note("handle", *out);
  if (prop->allocFlags.gpuDirectRDMACapable != 0) call.Note("rdma", 1);
  return CUDA_SUCCESS;
}

CUresult Export(Call& call, const MemoryPtr& memory, CUmemAllocationHandleType kind, void* out) {
  // Reference, section 2.1: the kinds are fixed when the memory is made.
  if (out == nullptr || memory == nullptr || kind != kPosix || !memory->exportable) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int fd = ::fcntl(memory->fd, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  call.Note("fd", fd);
  return CUDA_SUCCESS;
}

CUresult Import(Call& call, int fd, CUmemAllocationHandleType kind,
                CUmemGenericAllocationHandle* out) {
  if (out == nullptr || kind != kPosix) return CUDA_ERROR_INVALID_VALUE;
  const MemoryPtr memory = driver().store.Adopt(fd);
  // Reference, section 1.2 row 7: memory of a GPU that this process cannot see is "invalid
  // argument" too.
  if (memory == nullptr || driver().DeviceOf(memory->name.gpu) < 0) return CUDA_ERROR_INVALID_VALUE;
  *out = Hold(memory);
  call.Note("bytes", memory->name.bytes);
  call.Note("handle", *out);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* granularity,
                                               const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags which) {
  return Call("cuMemGetAllocationGranularity", {}).Run([&](Call&) -> CUresult {
    if (granularity == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult good = CheckProperties(prop);
    const std::uint64_t recommended = driver().config.recommended_granularity;
    const bool other = which == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED && recommended > 0;
    if (good == CUDA_SUCCESS) *granularity = other ? recommended : kGranularity;
    return good;
  });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
  return Call("cuMemCreate", {{"bytes", bytes}}).Run([&](Call& call) -> CUresult {
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : Create(call, bytes, prop, handle);
  });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Call("cuMemRelease", {{"handle", handle}}).Run([&](Call&) -> CUresult {
    const MemoryPtr memory = Find(handle);
    if (memory == nullptr) {
      // "If handle is not a valid handle the behavior is undefined."
      TraceViolation("cuMemRelease of a handle that is none, or was released before");
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Mappings hold the memory by themselves.
    if (--memory->handle_refs == 0) driver().handles.erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType kind,
                                              unsigned long long flags) {
  const Fields fields = {{"handle", handle}, {"kind", kind}};
  return Call("cuMemExportToShareableHandle", fields).Run([&](Call& call) -> CUresult {
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : Export(call, Find(handle), kind, out);
  });
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* shareable, CUmemAllocationHandleType kind) {
  const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  const Fields fields = {{"fd", fd}, {"kind", kind}};
  return Call("cuMemImportFromShareableHandle", fields).Run([&](Call& call) {
    return Import(call, fd, kind, handle);
  });
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return Call("cuMemRetainAllocationHandle", {{"address", address}})
      .Run([&](Call& call) -> CUresult {
        const auto* mapping = driver().space.MappingAt(reinterpret_cast<Address>(address));
        if (handle == nullptr || mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *handle = Hold(mapping->second.memory);
        call.Note("handle", *handle);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  return Call("cuMemGetAllocationPropertiesFromHandle", {{"handle", handle}})
      .Run([&](Call&) -> CUresult {
        const MemoryPtr memory = Find(handle);
        if (prop == nullptr || memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *prop = {};
        prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop->requestedHandleTypes = memory->exportable ? kPosix : CU_MEM_HANDLE_TYPE_NONE;
        prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop->location.id = driver().DeviceOf(memory->name.gpu);
        return CUDA_SUCCESS;
      });
}

}  // extern "C"

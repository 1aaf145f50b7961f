// What is known about an address.
#include <cstring>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

// An address that the driver knows: within a block, or within a mapping.
struct Known {
  Address base = 0;
  std::size_t bytes = 0;
  const Block* block = nullptr;
  const Mapping* mapping = nullptr;
  const Memory* memory = nullptr;  // null: pinned host memory
  std::uint64_t serial = 0;
  int device = 0;
};

std::optional<Known> Look(Address address) {
  const Space& space = driver().space;
  if (const auto* found = space.BlockAt(address)) {
    const Block& block = found->second;
    return Known{found->first,       block.bytes,  &block,      nullptr,
                 block.memory.get(), block.serial, block.device};
  }
  if (const auto* found = space.MappingAt(address)) {
    const Mapping& mapping = found->second;
    return Known{found->first,
                 mapping.bytes,
                 nullptr,
                 &mapping,
                 mapping.memory.get(),
                 mapping.serial,
                 driver().DeviceOf(mapping.memory->name.gpu)};
  }
  return std::nullopt;
}

template <typename T>
void Answer(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
}

// Mapped memory belongs to no context (reference, section 2.1).
CUcontext ContextOf(const Known& known) {
  if (known.block == nullptr) return nullptr;
  return reinterpret_cast<CUcontext>(
      &driver().devices[static_cast<std::size_t>(known.device)].context);
}

CUresult Get(void* out, CUpointer_attribute attribute, const Known& known, Address address) {
  const bool host = known.memory == nullptr;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      Answer(out, ContextOf(known));
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      Answer(out, unsigned{host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE});
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      Answer(out, CUdeviceptr{address});
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host) return CUDA_ERROR_INVALID_VALUE;
      Answer(out, reinterpret_cast<void*>(address));
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      Answer(out, static_cast<unsigned long long>(known.serial));
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      Answer(out, 0U);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      Answer(out, known.device);
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      Answer(out, known.block != nullptr && known.block->kind == BlockKind::kDevice ? 1U : 0U);
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      Answer(out, CUdeviceptr{known.base});
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      Answer(out, known.bytes);
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      Answer(out, 1U);
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: {
      const bool posix = known.mapping != nullptr && known.memory->exportable;
      Answer(out, static_cast<std::uint64_t>(posix ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0));
      break;
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuPointerGetAttribute(void* out, CUpointer_attribute attribute,
                                       CUdeviceptr address) {
  const Fields fields = {{"attribute", attribute}, {"address", address}};
  return Call("cuPointerGetAttribute", fields).RunInContext([&](Call&, Context&) -> CUresult {
    const auto known = Look(address);
    // "If ptr was not allocated by, mapped by, or registered with a CUcontext which uses unified
    // virtual addressing CUDA_ERROR_INVALID_VALUE is returned."
    if (out == nullptr || !known) return CUDA_ERROR_INVALID_VALUE;
    return Get(out, attribute, *known, address);
  });
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes,
                                      CUdeviceptr address) {
  return Call("cuMemGetAddressRange", {{"address", address}})
      .RunInContext([&](Call&, Context&) -> CUresult {
        const auto known = Look(address);
        // "If the device pointer is not part of an allocation": CUDA_ERROR_NOT_FOUND.
        if (!known) return CUDA_ERROR_NOT_FOUND;
        // "Both parameters are optional."
        if (base != nullptr) *base = known->base;
        if (bytes != nullptr) *bytes = known->bytes;
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr address) {
  const Fields fields = {{"count", count}, {"address", address}};
  return Call("cuPointerGetAttributes", fields).RunInContext([&](Call&, Context&) -> CUresult {
    if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto known = Look(address);
    for (unsigned i = 0; i < count; ++i) {
      // Unlike cuPointerGetAttribute: unknown pointers are not an error, they "have NULL
      // attributes". All that the fake answers is at least four bytes wide.
      if (!known || Get(data[i], attributes[i], *known, address) != CUDA_SUCCESS)
        Answer(data[i], 0U);
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

// Initialisation and devices.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

constexpr int kVersion = 13000;

struct Attribute {
  CUdevice_attribute which;
  int value;
};

// What programs look at before they share or copy memory; the figures are those of a server GPU.
// What is not here is 0: managed memory, fabric, pools, IPC events ...
constexpr Attribute kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 8},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
};

CUresult AnswerUuid(const char* function, CUuuid* uuid, CUdevice device) {
  return Call(function, {{"device", device}}).Run([&](Call& call) -> CUresult {
    const Device* found = driver().Find(device);
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const Fault* fault = call.fault();
    const Uuid& answer =
        fault != nullptr && fault->uuid ? *fault->uuid : driver().config.gpus[found->gpu].uuid;
    std::memcpy(uuid->bytes, answer.data(), answer.size());
    return CUDA_SUCCESS;
  });
}

// Copies at most `length` bytes, the last of them 0.
void CopyText(const std::string& text, char* out, int length) {
  std::snprintf(out, static_cast<std::size_t>(length), "%s", text.c_str());
}

}  // namespace

int AnswerAttribute(CUdevice_attribute attribute, const Device& device) {
  const Config& config = driver().config;
  const auto scripted = config.attributes.find(attribute);
  if (scripted != config.attributes.end()) return scripted->second;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) return config.compute_major;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) return config.compute_minor;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) return static_cast<int>(device.gpu) + 1;
  for (const Attribute& known : kAttributes) {
    if (known.which == attribute) return known.value;
  }
  return 0;
}

}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuInit(unsigned flags) {
  return Call("cuInit", {{"flags", flags}}).RunAnyTime([&](Call&) -> CUresult {
    Driver& d = driver();
    // cuInit: "the flags parameter must be 0".
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!d.config_error.empty()) return CUDA_ERROR_SYSTEM_NOT_READY;
    // CUDA_ERROR_NO_DEVICE: "no CUDA-capable devices were detected".
    if (d.devices.empty()) return CUDA_ERROR_NO_DEVICE;
    d.pid = ::getpid();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kVersion;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return Call("cuDeviceGetCount", {}).Run([&](Call&) -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver().devices.size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return Call("cuDeviceGet", {{"ordinal", ordinal}}).Run([&](Call&) -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (driver().Find(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
  return Call("cuDeviceGetName", {{"device", device}}).Run([&](Call&) -> CUresult {
    const Device* found = driver().Find(device);
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    CopyText(driver().config.gpus[found->gpu].name, name, length);
    return CUDA_SUCCESS;
  });
}

// The old name of the second version, without MIG's UUIDs.
#undef cuDeviceGetUuid
__attribute__((visibility("default"))) CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid,
                                                                        CUdevice device) {
  return AnswerUuid("cuDeviceGetUuid", uuid, device);
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return AnswerUuid("cuDeviceGetUuid", uuid, device);
}

CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  return Call("cuDeviceTotalMem", {{"device", device}}).Run([&](Call&) -> CUresult {
    const Device* found = driver().Find(device);
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = driver().config.gpus[found->gpu].bytes;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const Fields fields = {{"attribute", attribute}, {"device", device}};
  return Call("cuDeviceGetAttribute", fields).Run([&](Call&) -> CUresult {
    Driver& d = driver();
    if (value == nullptr || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Device* found = d.Find(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *value = AnswerAttribute(attribute, *found);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return Call("cuDeviceGetPCIBusId", {{"device", device}}).Run([&](Call&) -> CUresult {
    const Device* found = driver().Find(device);
    if (id == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02zX:00.0", found->gpu + 1);
    CopyText(text, id, length);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  const Fields fields = {{"device", device}, {"peer", peer}};
  return Call("cuDeviceCanAccessPeer", fields).Run([&](Call&) -> CUresult {
    Driver& d = driver();
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (d.Find(device) == nullptr || d.Find(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *can = d.config.peers && device != peer ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"

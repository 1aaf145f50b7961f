// cuGetProcAddress: entry points by unsuffixed name and version.
#include <cstring>

#include "tests/fakes/cuda/driver_api.h"

namespace {

constexpr int kVersion = 13000;

struct Entry {
  const char* name;
  int version;  // the first that has this ABI
  void* address;
};

// The type of that version must be that of the function.
template <typename T>
void* Typed(T function) {
  return reinterpret_cast<void*>(function);
}

// `#function` is the unsuffixed name; in the code cuda.h's macros make it the newest one.
#define CKPTD_ENTRY(function, version) \
  { #function, version, Typed < PFN_##function##_v##version>(&::function) }
#define CKPTD_ENTRY_AS(function, version, symbol) \
  { #function, version, Typed < PFN_##function##_v##version>(&::symbol) }

CUresult GetProcAddressOf11(const char* symbol, void** out, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, out, version, flags, nullptr);
}

const Entry kEntries[] = {
    CKPTD_ENTRY(cuInit, 2000),
    CKPTD_ENTRY(cuDriverGetVersion, 2020),
    {"cuGetProcAddress", 11030, Typed<PFN_cuGetProcAddress_v11030>(&GetProcAddressOf11)},
    CKPTD_ENTRY_AS(cuGetProcAddress, 12000, cuGetProcAddress_v2),
    CKPTD_ENTRY(cuGetErrorName, 6000),
    CKPTD_ENTRY(cuGetErrorString, 6000),
    CKPTD_ENTRY(cuDeviceGetCount, 2000),
    CKPTD_ENTRY(cuDeviceGet, 2000),
    CKPTD_ENTRY(cuDeviceGetName, 2000),
    CKPTD_ENTRY(cuDeviceGetUuid, 9020),
    CKPTD_ENTRY_AS(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2),
    CKPTD_ENTRY(cuDeviceTotalMem, 3020),
    CKPTD_ENTRY(cuDeviceGetAttribute, 2000),
    CKPTD_ENTRY(cuDeviceGetPCIBusId, 4010),
    CKPTD_ENTRY(cuDeviceCanAccessPeer, 4000),
    CKPTD_ENTRY(cuDevicePrimaryCtxRetain, 7000),
    CKPTD_ENTRY(cuDevicePrimaryCtxRelease, 11000),
    CKPTD_ENTRY(cuDevicePrimaryCtxGetState, 7000),
    CKPTD_ENTRY(cuDevicePrimaryCtxSetFlags, 11000),
    CKPTD_ENTRY(cuDevicePrimaryCtxReset, 11000),
    CKPTD_ENTRY(cuCtxSetCurrent, 4000),
    CKPTD_ENTRY(cuCtxGetCurrent, 4000),
    CKPTD_ENTRY(cuCtxGetDevice, 2000),
    CKPTD_ENTRY_AS(cuCtxGetDevice, 13000, cuCtxGetDevice_v2),
    CKPTD_ENTRY(cuCtxPushCurrent, 4000),
    CKPTD_ENTRY(cuCtxPopCurrent, 4000),
    CKPTD_ENTRY(cuCtxSynchronize, 2000),
    CKPTD_ENTRY_AS(cuCtxSynchronize, 13000, cuCtxSynchronize_v2),
    CKPTD_ENTRY(cuCtxEnablePeerAccess, 4000),
    CKPTD_ENTRY(cuMemGetInfo, 3020),
    CKPTD_ENTRY(cuMemAlloc, 3020),
    CKPTD_ENTRY(cuMemFree, 3020),
    CKPTD_ENTRY(cuMemGetAddressRange, 3020),
    CKPTD_ENTRY(cuMemHostAlloc, 2020),
    CKPTD_ENTRY(cuMemAllocHost, 3020),
    CKPTD_ENTRY(cuMemFreeHost, 2000),
    CKPTD_ENTRY(cuMemHostRegister, 6050),
    CKPTD_ENTRY(cuMemHostUnregister, 4000),
    CKPTD_ENTRY(cuMemHostGetDevicePointer, 3020),
    CKPTD_ENTRY(cuMemcpy, 4000),
    CKPTD_ENTRY(cuMemcpyAsync, 4000),
    CKPTD_ENTRY(cuMemcpyHtoD, 3020),
    CKPTD_ENTRY(cuMemcpyHtoDAsync, 3020),
    CKPTD_ENTRY(cuMemcpyDtoH, 3020),
    CKPTD_ENTRY(cuMemcpyDtoHAsync, 3020),
    CKPTD_ENTRY(cuMemcpyDtoD, 3020),
    CKPTD_ENTRY(cuMemcpyDtoDAsync, 3020),
    CKPTD_ENTRY(cuMemcpyPeerAsync, 4000),
    CKPTD_ENTRY(cuMemcpy2DAsync, 3020),
    CKPTD_ENTRY(cuMemsetD8, 3020),
    CKPTD_ENTRY(cuMemsetD8Async, 3020),
    CKPTD_ENTRY(cuMemsetD32, 3020),
    CKPTD_ENTRY(cuMemsetD32Async, 3020),
    CKPTD_ENTRY(cuPointerGetAttribute, 4000),
    CKPTD_ENTRY(cuPointerGetAttributes, 7000),
    CKPTD_ENTRY(cuMemGetAllocationGranularity, 10020),
    CKPTD_ENTRY(cuMemCreate, 10020),
    CKPTD_ENTRY(cuMemRelease, 10020),
    CKPTD_ENTRY(cuMemExportToShareableHandle, 10020),
    CKPTD_ENTRY(cuMemImportFromShareableHandle, 10020),
    CKPTD_ENTRY(cuMemAddressReserve, 10020),
    CKPTD_ENTRY(cuMemAddressFree, 10020),
    CKPTD_ENTRY(cuMemMap, 10020),
    CKPTD_ENTRY(cuMemUnmap, 10020),
    CKPTD_ENTRY(cuMemSetAccess, 10020),
    CKPTD_ENTRY(cuMemGetAccess, 10020),
    CKPTD_ENTRY(cuMemRetainAllocationHandle, 11000),
    CKPTD_ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020),
    CKPTD_ENTRY(cuIpcGetMemHandle, 4010),
    CKPTD_ENTRY(cuIpcOpenMemHandle, 11000),
    CKPTD_ENTRY(cuIpcCloseMemHandle, 4010),
    CKPTD_ENTRY(cuStreamCreate, 2000),
    CKPTD_ENTRY(cuStreamCreateWithPriority, 5050),
    CKPTD_ENTRY(cuStreamDestroy, 4000),
    CKPTD_ENTRY(cuStreamSynchronize, 2000),
    CKPTD_ENTRY(cuStreamQuery, 2000),
    CKPTD_ENTRY(cuStreamWaitEvent, 3020),
    CKPTD_ENTRY(cuLaunchHostFunc, 10000),
    CKPTD_ENTRY(cuThreadExchangeStreamCaptureMode, 10010),
    CKPTD_ENTRY(cuEventCreate, 2000),
    CKPTD_ENTRY(cuEventDestroy, 4000),
    CKPTD_ENTRY(cuEventRecord, 2000),
    CKPTD_ENTRY(cuEventSynchronize, 2000),
    CKPTD_ENTRY(cuEventQuery, 2000),
    CKPTD_ENTRY(cuEventElapsedTime, 2000),
    CKPTD_ENTRY_AS(cuEventElapsedTime, 12080, cuEventElapsedTime_v2),
    CKPTD_ENTRY(cuModuleLoadData, 2000),
    CKPTD_ENTRY(cuModuleLoadDataEx, 2010),
    CKPTD_ENTRY(cuModuleUnload, 2000),
    CKPTD_ENTRY(cuModuleGetFunction, 2000),
    CKPTD_ENTRY(cuFuncGetAttribute, 2020),
    CKPTD_ENTRY(cuOccupancyMaxPotentialBlockSize, 6050),
    CKPTD_ENTRY(cuLaunchKernel, 4000),
};

// The newest ABI that is not newer than asked for.
const Entry* Best(const char* name, int version, bool& known) {
  const Entry* best = nullptr;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.name, name) != 0) continue;
    known = true;
    const bool newer = best == nullptr || entry.version > best->version;
    if (entry.version <= version && newer) best = &entry;
  }
  return best;
}

}  // namespace

extern "C" {

// Per-thread default streams (its flag) have no entry points of their own here: "If a per-thread
// version is not found, the API will return the legacy version of the driver function."
CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  // "If the specified CUDA version is greater than the driver version, the API will return
  // CUDA_ERROR_INVALID_VALUE."
  if (symbol == nullptr || out == nullptr || version > kVersion || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool known = false;
  const Entry* best = Best(symbol, version, known);
  *out = best == nullptr ? nullptr : best->address;
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                              : (known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                       : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  }
  return CUDA_SUCCESS;
}

#undef cuGetProcAddress
__attribute__((visibility("default"))) CUresult CUDAAPI cuGetProcAddress(const char* symbol,
                                                                         void** out, int version,
                                                                         cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, out, version, flags, nullptr);
}

}  // extern "C"

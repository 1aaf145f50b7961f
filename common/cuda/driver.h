// NVIDIA's driver, opened at run time, so that the same binary runs without it. Nothing links
// libcuda. If the driver lacks a function, Load names it and fails.
#ifndef CKPTD_COMMON_CUDA_DRIVER_H_
#define CKPTD_COMMON_CUDA_DRIVER_H_

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// The functions that ckptd calls, named without "cu". Immutable once loaded, so thread-safe.
// Loaded once per process; libcuda stays open until the process ends.
struct CudaDriver {
  // Errors: FailedPrecondition NO_DEVICE naming what is missing: the library, a function, a
  // device (cuInit's result).
  static absl::StatusOr<const CudaDriver*> Load();
  // Whether a driver with these functions exists, without calling cuInit. That is slow, and a
  // process may never need it.
  static bool Present();

  // A driver whose functions do nothing and return CUDA_ERROR_UNKNOWN.
  static const CudaDriver& Refusing();

  int version = 0;  // 13000 for CUDA 13.0

  PFN_cuGetErrorName_v6000 GetErrorName = nullptr;
  PFN_cuGetErrorString_v6000 GetErrorString = nullptr;
  PFN_cuInit_v2000 Init = nullptr;
  PFN_cuDriverGetVersion_v2020 DriverGetVersion = nullptr;
  PFN_cuDeviceGetCount_v2000 DeviceGetCount = nullptr;
  PFN_cuDeviceGet_v2000 DeviceGet = nullptr;
  PFN_cuDeviceGetName_v2000 DeviceGetName = nullptr;
  PFN_cuDeviceGetUuid_v11040 DeviceGetUuid = nullptr;
  PFN_cuDeviceTotalMem_v3020 DeviceTotalMem = nullptr;
  PFN_cuDeviceGetAttribute_v2000 DeviceGetAttribute = nullptr;
  PFN_cuDeviceCanAccessPeer_v4000 DeviceCanAccessPeer = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 DevicePrimaryCtxRetain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 DevicePrimaryCtxRelease = nullptr;
  PFN_cuCtxPushCurrent_v4000 CtxPushCurrent = nullptr;
  PFN_cuCtxPopCurrent_v4000 CtxPopCurrent = nullptr;
  PFN_cuMemGetInfo_v3020 MemGetInfo = nullptr;
  PFN_cuMemHostAlloc_v2020 MemHostAlloc = nullptr;
  PFN_cuMemFreeHost_v2000 MemFreeHost = nullptr;
  PFN_cuMemcpyHtoDAsync_v3020 MemcpyHtoDAsync = nullptr;
  PFN_cuMemcpyDtoHAsync_v3020 MemcpyDtoHAsync = nullptr;
  PFN_cuMemcpyDtoDAsync_v3020 MemcpyDtoDAsync = nullptr;
  PFN_cuMemsetD8Async_v3020 MemsetD8Async = nullptr;
  PFN_cuMemAlloc_v3020 MemAlloc = nullptr;
  PFN_cuMemFree_v3020 MemFree = nullptr;
  PFN_cuMemGetAddressRange_v3020 MemGetAddressRange = nullptr;
  PFN_cuIpcGetMemHandle_v4010 IpcGetMemHandle = nullptr;
  PFN_cuIpcOpenMemHandle_v11000 IpcOpenMemHandle = nullptr;
  PFN_cuIpcCloseMemHandle_v4010 IpcCloseMemHandle = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 MemGetAllocationGranularity = nullptr;
  PFN_cuMemCreate_v10020 MemCreate = nullptr;
  PFN_cuMemRelease_v10020 MemRelease = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 MemExportToShareableHandle = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 MemImportFromShareableHandle = nullptr;
  PFN_cuMemAddressReserve_v10020 MemAddressReserve = nullptr;
  PFN_cuMemAddressFree_v10020 MemAddressFree = nullptr;
  PFN_cuMemMap_v10020 MemMap = nullptr;
  PFN_cuMemUnmap_v10020 MemUnmap = nullptr;
  PFN_cuMemSetAccess_v10020 MemSetAccess = nullptr;
  PFN_cuStreamCreate_v2000 StreamCreate = nullptr;
  PFN_cuStreamDestroy_v4000 StreamDestroy = nullptr;
  PFN_cuStreamQuery_v2000 StreamQuery = nullptr;
  PFN_cuEventCreate_v2000 EventCreate = nullptr;
  PFN_cuEventDestroy_v4000 EventDestroy = nullptr;
  PFN_cuEventRecord_v2000 EventRecord = nullptr;
  PFN_cuEventQuery_v2000 EventQuery = nullptr;
  PFN_cuModuleLoadData_v2000 ModuleLoadData = nullptr;
  PFN_cuModuleUnload_v2000 ModuleUnload = nullptr;
  PFN_cuModuleGetFunction_v2000 ModuleGetFunction = nullptr;
  PFN_cuLaunchKernel_v4000 LaunchKernel = nullptr;
};

// OK for CUDA_SUCCESS, otherwise the canonical error, as "doing: CUDA_ERROR_NAME (its sentence)".
// No memory is ResourceExhausted NO_MEMORY, every other error Unavailable DEVICE_FAILED. `doing`
// names the device.
absl::Status CudaStatus(const CudaDriver& driver, CUresult result, std::string_view doing);

}  // namespace ckptd

#endif  // CKPTD_COMMON_CUDA_DRIVER_H_

#include "common/cuda/driver.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

absl::Status NoDevice(const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                   "opening the CUDA driver: " + why);
}

// Looks functions up by the version of their interface that the table is typed for.
class Lookup {
 public:
  explicit Lookup(PFN_cuGetProcAddress_v12000 find) : find_(find) {}

  template <typename Function>
  void operator()(const char* name, int version, Function& function) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult why = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result =
        find_(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &why);
    if (result == CUDA_SUCCESS && found != nullptr) {
      function = reinterpret_cast<Function>(found);
    } else if (missing_.empty()) {
      missing_ = name;
    }
  }
  const std::string& missing() const { return missing_; }

 private:
  PFN_cuGetProcAddress_v12000 find_;
  std::string missing_;
};

std::string FillTable(PFN_cuGetProcAddress_v12000 find, CudaDriver& driver) {
  Lookup look(find);
  look("cuGetErrorName", 6000, driver.GetErrorName);
  look("cuGetErrorString", 6000, driver.GetErrorString);
  look("cuInit", 2000, driver.Init);
  look("cuDriverGetVersion", 2020, driver.DriverGetVersion);
  look("cuDeviceGetCount", 2000, driver.DeviceGetCount);
  look("cuDeviceGet", 2000, driver.DeviceGet);
  look("cuDeviceGetName", 2000, driver.DeviceGetName);
  look("cuDeviceGetUuid", 11040, driver.DeviceGetUuid);
  look("cuDeviceTotalMem", 3020, driver.DeviceTotalMem);
  look("cuDeviceGetAttribute", 2000, driver.DeviceGetAttribute);
  look("cuDevicePrimaryCtxRetain", 7000, driver.DevicePrimaryCtxRetain);
  look("cuDevicePrimaryCtxRelease", 11000, driver.DevicePrimaryCtxRelease);
  look("cuCtxPushCurrent", 4000, driver.CtxPushCurrent);
  look("cuCtxPopCurrent", 4000, driver.CtxPopCurrent);
  look("cuMemGetInfo", 3020, driver.MemGetInfo);
  look("cuMemHostAlloc", 2020, driver.MemHostAlloc);
  look("cuMemFreeHost", 2000, driver.MemFreeHost);
  look("cuMemcpyHtoDAsync", 3020, driver.MemcpyHtoDAsync);
  look("cuMemcpyDtoHAsync", 3020, driver.MemcpyDtoHAsync);
  look("cuMemcpyDtoDAsync", 3020, driver.MemcpyDtoDAsync);
  look("cuMemsetD8Async", 3020, driver.MemsetD8Async);
  look("cuMemAlloc", 3020, driver.MemAlloc);
  look("cuMemFree", 3020, driver.MemFree);
  look("cuMemGetAddressRange", 3020, driver.MemGetAddressRange);
  look("cuIpcGetMemHandle", 4010, driver.IpcGetMemHandle);
  look("cuIpcOpenMemHandle", 11000, driver.IpcOpenMemHandle);
  look("cuIpcCloseMemHandle", 4010, driver.IpcCloseMemHandle);
  look("cuMemGetAllocationGranularity", 10020, driver.MemGetAllocationGranularity);
  look("cuMemCreate", 10020, driver.MemCreate);
  look("cuMemRelease", 10020, driver.MemRelease);
  look("cuMemExportToShareableHandle", 10020, driver.MemExportToShareableHandle);
  look("cuMemImportFromShareableHandle", 10020, driver.MemImportFromShareableHandle);
  look("cuMemAddressReserve", 10020, driver.MemAddressReserve);
  look("cuMemAddressFree", 10020, driver.MemAddressFree);
  look("cuMemMap", 10020, driver.MemMap);
  look("cuMemUnmap", 10020, driver.MemUnmap);
  look("cuMemSetAccess", 10020, driver.MemSetAccess);
  look("cuStreamCreate", 2000, driver.StreamCreate);
  look("cuStreamDestroy", 4000, driver.StreamDestroy);
  look("cuStreamQuery", 2000, driver.StreamQuery);
  look("cuEventCreate", 2000, driver.EventCreate);
  look("cuEventDestroy", 4000, driver.EventDestroy);
  look("cuEventRecord", 2000, driver.EventRecord);
  look("cuEventQuery", 2000, driver.EventQuery);
  look("cuModuleLoadData", 2000, driver.ModuleLoadData);
  look("cuModuleUnload", 2000, driver.ModuleUnload);
  look("cuModuleGetFunction", 2000, driver.ModuleGetFunction);
  look("cuLaunchKernel", 4000, driver.LaunchKernel);
  return look.missing();
}

absl::StatusOr<CudaDriver> OpenLibrary() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NoDevice(::dlerror());
  const auto find =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(::dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    return NoDevice(fmt::format("{} has no cuGetProcAddress_v2; install a driver for CUDA 12 or "
                                "newer (525 or later)",
                                kLibrary));
  }
  CudaDriver driver;
  if (const std::string missing = FillTable(find, driver); !missing.empty()) {
    return NoDevice(fmt::format("{} has no {}; install a driver for CUDA 12 or newer (525 or "
                                "later)",
                                kLibrary, missing));
  }
  return driver;
}

const absl::StatusOr<CudaDriver>& Library() {
  static const absl::StatusOr<CudaDriver> library = OpenLibrary();
  return library;
}

absl::StatusOr<CudaDriver> Initialize() {
  CKPTD_ASSIGN_OR_RETURN(CudaDriver driver, Library());
  const CUresult result = driver.Init(0);
  if (result != CUDA_SUCCESS) {
    return NoDevice(MessageOf(CudaStatus(driver, result, "cuInit")));
  }
  if (driver.DriverGetVersion(&driver.version) != CUDA_SUCCESS) driver.version = 0;
  return driver;
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Load() {
  static const absl::StatusOr<CudaDriver> loaded = Initialize();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

bool CudaDriver::Present() { return Library().ok(); }

absl::Status CudaStatus(const CudaDriver& driver, CUresult result, std::string_view doing) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* sentence = nullptr;
  if (driver.GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (driver.GetErrorString(result, &sentence) != CUDA_SUCCESS || sentence == nullptr) {
    sentence = "no sentence";
  }
  const std::string message =
      fmt::format("{}: {} {} ({})", doing, name, static_cast<int>(result), sentence);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, message);
  }
  return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, message);
}

}  // namespace ckptd

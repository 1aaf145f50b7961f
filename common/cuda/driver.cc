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

// Calls visit(name, version of its interface, function) for each function of one kind.
template <typename Visit>
void VisitDevices(CudaDriver& driver, Visit& visit) {
  visit("cuGetErrorName", 6000, driver.GetErrorName);
  visit("cuGetErrorString", 6000, driver.GetErrorString);
  visit("cuInit", 2000, driver.Init);
  visit("cuDriverGetVersion", 2020, driver.DriverGetVersion);
  visit("cuDeviceGetCount", 2000, driver.DeviceGetCount);
  visit("cuDeviceGet", 2000, driver.DeviceGet);
  visit("cuDeviceGetName", 2000, driver.DeviceGetName);
  visit("cuDeviceGetUuid", 11040, driver.DeviceGetUuid);
  visit("cuDeviceTotalMem", 3020, driver.DeviceTotalMem);
  visit("cuDeviceGetAttribute", 2000, driver.DeviceGetAttribute);
  visit("cuDeviceCanAccessPeer", 4000, driver.DeviceCanAccessPeer);
  visit("cuDevicePrimaryCtxRetain", 7000, driver.DevicePrimaryCtxRetain);
  visit("cuDevicePrimaryCtxRelease", 11000, driver.DevicePrimaryCtxRelease);
  visit("cuCtxPushCurrent", 4000, driver.CtxPushCurrent);
  visit("cuCtxPopCurrent", 4000, driver.CtxPopCurrent);
}
template <typename Visit>
void VisitMemory(CudaDriver& driver, Visit& visit) {
  visit("cuMemGetInfo", 3020, driver.MemGetInfo);
  visit("cuMemHostAlloc", 2020, driver.MemHostAlloc);
  visit("cuMemFreeHost", 2000, driver.MemFreeHost);
  visit("cuMemAlloc", 3020, driver.MemAlloc);
  visit("cuMemFree", 3020, driver.MemFree);
  visit("cuMemGetAddressRange", 3020, driver.MemGetAddressRange);
  visit("cuIpcGetMemHandle", 4010, driver.IpcGetMemHandle);
  visit("cuIpcOpenMemHandle", 11000, driver.IpcOpenMemHandle);
  visit("cuIpcCloseMemHandle", 4010, driver.IpcCloseMemHandle);
  visit("cuMemGetAllocationGranularity", 10020, driver.MemGetAllocationGranularity);
  visit("cuMemCreate", 10020, driver.MemCreate);
  visit("cuMemRelease", 10020, driver.MemRelease);
  visit("cuMemExportToShareableHandle", 10020, driver.MemExportToShareableHandle);
  visit("cuMemImportFromShareableHandle", 10020, driver.MemImportFromShareableHandle);
  visit("cuMemAddressReserve", 10020, driver.MemAddressReserve);
  visit("cuMemAddressFree", 10020, driver.MemAddressFree);
  visit("cuMemMap", 10020, driver.MemMap);
  visit("cuMemUnmap", 10020, driver.MemUnmap);
  visit("cuMemSetAccess", 10020, driver.MemSetAccess);
}
template <typename Visit>
void VisitWork(CudaDriver& driver, Visit& visit) {
  visit("cuMemcpyHtoDAsync", 3020, driver.MemcpyHtoDAsync);
  visit("cuMemcpyDtoHAsync", 3020, driver.MemcpyDtoHAsync);
  visit("cuMemcpyDtoDAsync", 3020, driver.MemcpyDtoDAsync);
  visit("cuMemsetD8Async", 3020, driver.MemsetD8Async);
  visit("cuStreamCreate", 2000, driver.StreamCreate);
  visit("cuStreamDestroy", 4000, driver.StreamDestroy);
  visit("cuStreamQuery", 2000, driver.StreamQuery);
  visit("cuEventCreate", 2000, driver.EventCreate);
  visit("cuEventDestroy", 4000, driver.EventDestroy);
  visit("cuEventRecord", 2000, driver.EventRecord);
  visit("cuEventQuery", 2000, driver.EventQuery);
  visit("cuModuleLoadData", 2000, driver.ModuleLoadData);
  visit("cuModuleUnload", 2000, driver.ModuleUnload);
  visit("cuModuleGetFunction", 2000, driver.ModuleGetFunction);
  visit("cuLaunchKernel", 4000, driver.LaunchKernel);
}
// Visits the whole table.
template <typename Visit>
void ForEachFunction(CudaDriver& driver, Visit& visit) {
  VisitDevices(driver, visit);
  VisitMemory(driver, visit);
  VisitWork(driver, visit);
}

// Looks functions up with the interface version for which the table is typed.
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

// Fills the table with functions that refuse every call.
struct Refuse {
  template <typename... Arguments>
  void operator()(const char*, int, CUresult (*&function)(Arguments...)) const {
    function = [](Arguments...) { return CUDA_ERROR_UNKNOWN; };
  }
};

std::string FillTable(PFN_cuGetProcAddress_v12000 find, CudaDriver& driver) {
  Lookup look(find);
  ForEachFunction(driver, look);
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

// Never destroyed, like the two below, because threads may outlive main.
const absl::StatusOr<CudaDriver>& Library() {
  static const auto* const library = new absl::StatusOr<CudaDriver>(OpenLibrary());
  return *library;
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
  static const auto* const loaded = new absl::StatusOr<CudaDriver>(Initialize());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

const CudaDriver& CudaDriver::Refusing() {
  static const CudaDriver* const refusing = [] {
    auto* const driver = new CudaDriver;
    const Refuse refuse;
    ForEachFunction(*driver, refuse);
    return driver;
  }();
  return *refusing;
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

#include "common/cuda/device.h"

#include <array>
#include <chrono>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// For a MIG slice the driver returns the slice's own UUID, 16 bytes without a prefix. Only the
// name shows that it is a slice ("NVIDIA H100 80GB HBM3 MIG 1g.10gb").
std::string UuidText(const CUuuid& uuid, std::string_view name) {
  std::string text = name.find(" MIG ") == std::string_view::npos ? "GPU-" : "MIG-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string_view DigitsOf(std::string_view uuid) {
  for (const std::string_view prefix : {"GPU-", "MIG-"}) {
    if (uuid.substr(0, prefix.size()) == prefix) return uuid.substr(prefix.size());
  }
  return uuid;
}

// A driver that does not know the attribute does not have the feature.
bool Has(const CudaDriver& driver, CUdevice gpu, CUdevice_attribute attribute) {
  int value = 0;
  return driver.DeviceGetAttribute(&value, attribute, gpu) == CUDA_SUCCESS && value != 0;
}

// Some virtual GPUs and slices have neither feature; WSL lacks the second.
std::string WhyNoDescriptors(const CudaDriver& driver, CUdevice gpu) {
  if (!Has(driver, gpu, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    return "its driver has no virtual memory management there";
  }
  if (!Has(driver, gpu, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    return "its driver exports no memory as POSIX file descriptors there";
  }
  return "";
}

absl::StatusOr<GpuInfo> Describe(const CudaDriver& driver, int ordinal) {
  const std::string doing = fmt::format("asking about GPU {}", ordinal);
  GpuInfo info;
  CKPTD_RETURN_IF_ERROR(CudaStatus(driver, driver.DeviceGet(&info.ordinal, ordinal), doing));
  CUuuid uuid = {};
  CKPTD_RETURN_IF_ERROR(CudaStatus(driver, driver.DeviceGetUuid(&uuid, info.ordinal), doing));
  std::array<char, 256> name = {};
  CKPTD_RETURN_IF_ERROR(CudaStatus(
      driver, driver.DeviceGetName(name.data(), static_cast<int>(name.size() - 1), info.ordinal),
      doing));
  info.name = name.data();
  info.uuid = UuidText(uuid, info.name);
  size_t total = 0;
  CKPTD_RETURN_IF_ERROR(CudaStatus(driver, driver.DeviceTotalMem(&total, info.ordinal), doing));
  info.total_bytes = total;
  info.no_descriptors = WhyNoDescriptors(driver, info.ordinal);
  info.rdma = Has(driver, info.ordinal,
                  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  return info;
}

// Errors for which the driver API's reference says that "the process must be terminated and
// relaunched", and permanent errors of the hardware.
bool EndsAllUse(CUresult result) {
  // By number, because not every toolkit names them: a contained error, a leak of tensor memory,
  // a client that MPS has ended, an external device.
  for (const int number : {226, 721, 810, 911}) {
    if (result == static_cast<CUresult>(number)) return true;
  }
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

// Never destroyed, because threads may outlive main.
struct FirstFailure {
  Mutex mutex;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

FirstFailure& Failure() {
  static auto* const failure = new FirstFailure;
  return *failure;
}

}  // namespace

std::atomic<bool> CudaDevice::failed_ = false;

struct CudaDevice::Unfinished {
  // locked before `mutex`, so that who needs room waits for memory that is being freed
  Mutex freeing;
  Mutex mutex;    // guards all members
  std::vector<CUstream> streams;
  bool awaited = false;  // a thread waits for the work and holds the context
  std::vector<Free> kept;
  unsigned claims = 0;
};

absl::Status CudaFailure() {
  MutexLock lock(Failure().mutex);
  return Failure().status;
}

absl::StatusOr<std::vector<GpuInfo>> ListGpus(const CudaDriver& driver) {
  int count = 0;
  CKPTD_RETURN_IF_ERROR(CudaStatus(driver, driver.DeviceGetCount(&count), "counting GPUs"));
  std::vector<GpuInfo> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CKPTD_ASSIGN_OR_RETURN(gpus.emplace_back(), Describe(driver, ordinal));
  }
  if (!gpus.empty()) return gpus;
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                   "counting GPUs: the driver shows none; look at CUDA_VISIBLE_DEVICES, and at "
                   "the GPUs this container was given");
}

absl::StatusOr<GpuInfo> FindGpu(const CudaDriver& driver, std::string_view uuid) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<GpuInfo> gpus, ListGpus(driver));
  std::vector<std::string> seen;
  for (const GpuInfo& gpu : gpus) {
    if (DigitsOf(gpu.uuid) == DigitsOf(uuid)) return gpu;
    seen.push_back(gpu.uuid);
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                   fmt::format("looking for {}: this process sees only {}; give it that GPU "
                               "(CUDA_VISIBLE_DEVICES, the container's devices)",
                               uuid, fmt::join(seen, ", ")),
                   {{"device", std::string(uuid)}});
}

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Open(const CudaDriver& driver,
                                                             GpuInfo info) {
  CKPTD_RETURN_IF_ERROR(CudaFailure());
  CUcontext context = nullptr;
  CKPTD_RETURN_IF_ERROR(CudaStatus(driver, driver.DevicePrimaryCtxRetain(&context, info.ordinal),
                                   "making a context on " + info.uuid));
  return std::shared_ptr<CudaDevice>(new CudaDevice(driver, std::move(info), context));
}

// The last release of a context would wait for its work. If that work does not end, the context
// is leaked.
CudaDevice::~CudaDevice() {
  {
    MutexLock lock(unfinished_.mutex);
    // nothing else would keep the context
    if (CheckBusy() && !unfinished_.awaited && unfinished_.claims == 0) return;
  }
  FreeDeferred();
  driver().DevicePrimaryCtxRelease(info_.ordinal);
}

CudaDevice::CudaDevice(const CudaDriver& driver, GpuInfo info, CUcontext context)
    : driver_(driver),
      info_(std::move(info)),
      context_(context),
      unfinished_(UnfinishedOf(info_.ordinal)) {}

CudaDevice::Unfinished& CudaDevice::UnfinishedOf(CUdevice ordinal) {
  static Mutex mutex;
  static auto* const all = new std::map<CUdevice, Unfinished>;  // threads may outlive main
  MutexLock lock(mutex);
  return (*all)[ordinal];
}

void CudaDevice::Retire(CUstream stream) {
  const CudaScope scope(*this);
  MutexLock lock(unfinished_.mutex);
  if (unfinished_.claims == 0 && driver().StreamQuery(stream) != CUDA_ERROR_NOT_READY) {
    driver().StreamDestroy(stream);
    return;
  }
  unfinished_.streams.push_back(stream);
  if (std::exchange(unfinished_.awaited, true)) return;
  try {
    std::thread([self = shared_from_this()] { self->AwaitUnfinished(); }).detach();
  } catch (const std::system_error&) {
    unfinished_.awaited = false;  // the next FreeDeferred does it
  }
}

void CudaDevice::AwaitUnfinished() {
  constexpr std::chrono::milliseconds kPoll{20};
  for (bool busy = true; busy;) {
    std::this_thread::sleep_for(kPoll);
    MutexLock lock(unfinished_.mutex);
    busy = CheckBusy();
    unfinished_.awaited = busy;
  }
  FreeDeferred();
}

bool CudaDevice::CheckBusy() {
  if (unfinished_.claims > 0) return true;
  if (unfinished_.streams.empty()) return false;  // nearly always, without a call to the driver
  const CudaScope scope(*this);
  std::erase_if(unfinished_.streams, [this](CUstream stream) {
    if (driver().StreamQuery(stream) == CUDA_ERROR_NOT_READY) return false;
    driver().StreamDestroy(stream);
    return true;
  });
  return !unfinished_.streams.empty();
}

bool CudaDevice::Busy() {
  MutexLock lock(unfinished_.mutex);
  return CheckBusy();
}

bool CudaDevice::DeferFree(Free free) {
  MutexLock lock(unfinished_.mutex);
  if (!CheckBusy()) return false;
  unfinished_.kept.push_back(std::move(free));
  return true;
}

void CudaDevice::FreeDeferred() {
  std::vector<Free> kept;
  MutexLock freeing(unfinished_.freeing);
  {
    MutexLock lock(unfinished_.mutex);
    if (CheckBusy()) return;
    kept.swap(unfinished_.kept);
  }
  const CudaScope scope(*this);
  for (const Free& free : kept) free(driver());
}

CudaClaim::CudaClaim(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {
  MutexLock lock(device_->unfinished_.mutex);
  ++device_->unfinished_.claims;
}

CudaClaim::~CudaClaim() {
  {
    MutexLock lock(device_->unfinished_.mutex);
    --device_->unfinished_.claims;
  }
  device_->FreeDeferred();
}

absl::Status CudaDevice::Check(CUresult result, std::string_view doing) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  if (failed_) return CudaFailure();
  const absl::Status status = WithFact(
      CudaStatus(driver_, result, fmt::format("{} on {}", doing, info_.uuid)), "device", info_.uuid);
  if (!EndsAllUse(result)) return status;
  FirstFailure& first = Failure();
  MutexLock lock(first.mutex);
  if (!first.status.ok()) return first.status;
  first.status = MakeError(status.code(), ReasonOf(status),
                           MessageOf(status) + "; after such an error this process cannot use "
                                               "GPUs any more: start it again",
                           FactsOf(status));
  failed_ = true;
  return first.status;
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytes() const {
  const CudaScope scope(*this);
  size_t free = 0;
  size_t total = 0;
  CKPTD_RETURN_IF_ERROR(Check(driver().MemGetInfo(&free, &total), "asking for free memory"));
  return free;
}

}  // namespace ckptd

#include "common/cuda/device.h"

#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Of a MIG slice the driver gives the slice's own UUID, 16 bytes without a prefix; that it is
// one shows only in its name ("NVIDIA H100 80GB HBM3 MIG 1g.10gb").
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
  return info;
}

}  // namespace

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
  CUcontext context = nullptr;
  CKPTD_RETURN_IF_ERROR(CudaStatus(driver, driver.DevicePrimaryCtxRetain(&context, info.ordinal),
                                   "making a context on " + info.uuid));
  return std::shared_ptr<CudaDevice>(new CudaDevice(driver, std::move(info), context));
}

CudaDevice::~CudaDevice() { driver_.DevicePrimaryCtxRelease(info_.ordinal); }

absl::Status CudaDevice::Check(CUresult result, std::string_view doing) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return WithFact(CudaStatus(driver_, result, fmt::format("{} on {}", doing, info_.uuid)), "device",
                  info_.uuid);
}

absl::StatusOr<uint64_t> CudaDevice::FreeBytes() const {
  const CudaScope scope(*this);
  size_t free = 0;
  size_t total = 0;
  CKPTD_RETURN_IF_ERROR(Check(driver_.MemGetInfo(&free, &total), "asking for free memory"));
  return free;
}

}  // namespace ckptd

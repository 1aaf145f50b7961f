#include "common/cuda/allocation.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

CUmemAllocationProp PropertiesOn(const CudaDevice& device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.info().ordinal;
  // NCCL can register memory with a network card only if it was made with this flag. Trainers
  // send weights from here.
  properties.allocFlags.gpuDirectRDMACapable = device.info().rdma ? 1 : 0;
  return properties;
}

// Smaller allocations may share a block of this size, and an IPC handle would show all of it.
constexpr uint64_t kPlainBlock = uint64_t{2} << 20;

// The largest multiple if `bytes` exceed any GPU's memory.
uint64_t RoundedUp(uint64_t bytes, uint64_t unit) {
  return std::min(bytes / unit + (bytes % unit != 0 ? 1 : 0), UINT64_MAX / unit) * unit;
}

// Memory is made in the recommended granularity, because NCCL registers it only in such steps.
// Imported memory keeps its size. For that the driver requires only the minimum granularity,
// because another driver may recommend a different one.
absl::StatusOr<uint64_t> GranularityOf(const CudaDevice& device,
                                       CUmemAllocationGranularity_flags which) {
  const CUmemAllocationProp properties = PropertiesOn(device);
  size_t granularity = 0;
  CKPTD_RETURN_IF_ERROR(
      device.Check(device.driver().MemGetAllocationGranularity(&granularity, &properties, which),
                   "asking for the allocation granularity"));
  return granularity;
}

}  // namespace

CudaAllocation& CudaAllocation::operator=(CudaAllocation&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  device_ = std::move(other.device_);
  parts_ = std::exchange(other.parts_, Parts());
  return *this;
}

absl::StatusOr<uint64_t> CudaAllocation::TakenFor(const CudaDevice& device, uint64_t bytes,
                                                  bool plain) {
  if (plain) return RoundedUp(bytes, kPlainBlock);
  CKPTD_ASSIGN_OR_RETURN(const uint64_t granularity,
                         GranularityOf(device, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  return RoundedUp(bytes, granularity);
}

absl::StatusOr<CudaAllocation> CudaAllocation::Create(std::shared_ptr<CudaDevice> device,
                                                      uint64_t bytes) {
  CudaAllocation made;
  CKPTD_ASSIGN_OR_RETURN(made.parts_.bytes, TakenFor(*device, bytes, false));
  made.device_ = std::move(device);
  const CudaScope scope(*made.device_);
  const CUmemAllocationProp properties = PropertiesOn(*made.device_);
  CKPTD_RETURN_IF_ERROR(made.device_->Check(
      made.device_->driver().MemCreate(&made.parts_.handle, made.parts_.bytes, &properties, 0),
      fmt::format("allocating {} bytes", made.parts_.bytes)));
  made.parts_.has_handle = true;
  CKPTD_RETURN_IF_ERROR(made.Map(true));
  return made;
}

absl::StatusOr<CudaAllocation> CudaAllocation::CreatePlain(std::shared_ptr<CudaDevice> device,
                                                           uint64_t bytes) {
  CudaAllocation made;
  made.device_ = std::move(device);
  made.parts_.kind = Kind::kPlain;
  made.parts_.bytes = RoundedUp(bytes, kPlainBlock);
  const CudaScope scope(*made.device_);
  CUdeviceptr address = 0;
  CKPTD_RETURN_IF_ERROR(
      made.device_->Check(made.device_->driver().MemAlloc(&address, made.parts_.bytes),
                          fmt::format("allocating {} bytes", made.parts_.bytes)));
  made.parts_.address = address;
  return made;
}

absl::StatusOr<CudaAllocation> CudaAllocation::Open(std::shared_ptr<CudaDevice> device,
                                                    std::string_view ipc_handle, uint64_t bytes) {
  CUipcMemHandle handle = {};
  if (ipc_handle.size() != sizeof(handle) || bytes == 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("opening device memory: {} bytes by a handle of {}; handles have "
                                 "{}",
                                 bytes, ipc_handle.size(), sizeof(handle)));
  }
  std::memcpy(&handle, ipc_handle.data(), sizeof(handle));
  CudaAllocation made;
  made.device_ = std::move(device);
  made.parts_.kind = Kind::kOpened;
  made.parts_.bytes = bytes;
  const CudaScope scope(*made.device_);
  CUdeviceptr address = 0;
  const CUresult result = made.device_->driver().IpcOpenMemHandle(
      &address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     MessageOf(made.device_->Check(result, "opening device memory")) +
                         "; CUDA_IPC handles need the two processes in one PID namespace "
                         "(shareProcessNamespace), and not to be the same one; else use VMM_FD");
  }
  CKPTD_RETURN_IF_ERROR(made.device_->Check(result, "opening device memory"));
  made.parts_.address = address;
  CKPTD_RETURN_IF_ERROR(made.CheckRange());
  return made;
}

// The size comes from another process, so it is compared with the driver's.
absl::Status CudaAllocation::CheckRange() const {
  CUdeviceptr base = 0;
  size_t size = 0;
  CKPTD_RETURN_IF_ERROR(
      device_->Check(device_->driver().MemGetAddressRange(&base, &size, parts_.address),
                     "asking how large opened memory is"));
  if (base == parts_.address && size >= parts_.bytes) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("opening device memory: {} bytes were announced, {} are there",
                               parts_.bytes,
                               size - std::min<uint64_t>(size, parts_.address - base)),
                   {{"device", device_->info().uuid}});
}

absl::StatusOr<CudaAllocation> CudaAllocation::Import(std::shared_ptr<CudaDevice> device, int fd,
                                                      uint64_t bytes, bool writable) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t granularity,
                         GranularityOf(*device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  if (bytes == 0 || bytes % granularity != 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("importing device memory: {} bytes are no whole number of {}",
                                 bytes, granularity));
  }
  CudaAllocation made;
  made.device_ = std::move(device);
  made.parts_.bytes = bytes;
  const CudaScope scope(*made.device_);
  // The driver expects the descriptor's number in place of a pointer.
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  CKPTD_RETURN_IF_ERROR(made.device_->Check(
      made.device_->driver().MemImportFromShareableHandle(
          &made.parts_.handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "importing device memory"));
  made.parts_.has_handle = true;
  CKPTD_RETURN_IF_ERROR(made.Map(writable));
  return made;
}

absl::Status CudaAllocation::Map(bool writable) {
  const CudaDriver& driver = device_->driver();
  CUdeviceptr address = 0;
  CKPTD_RETURN_IF_ERROR(
      device_->Check(driver.MemAddressReserve(&address, parts_.bytes, 0, 0, 0),
                     fmt::format("reserving {} bytes of addresses", parts_.bytes)));
  parts_.address = address;
  CKPTD_RETURN_IF_ERROR(
      device_->Check(driver.MemMap(parts_.address, parts_.bytes, 0, parts_.handle, 0),
                     fmt::format("mapping {} bytes", parts_.bytes)));
  parts_.mapped = true;
  return device_->Check(Allow(device_->info().ordinal, writable),
                        fmt::format("making {} bytes accessible", parts_.bytes));
}

CUresult CudaAllocation::Allow(CUdevice gpu, bool writable) const {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return device_->driver().MemSetAccess(parts_.address, parts_.bytes, &access, 1);
}

// For other kinds the driver gives peers access by itself.
void CudaAllocation::AllowPeerAccess(bool writable) const {
  if (!parts_.mapped) return;
  const CudaDriver& driver = device_->driver();
  const CudaScope scope(*device_);
  int count = 0;
  if (driver.DeviceGetCount(&count) != CUDA_SUCCESS) return;
  for (CUdevice gpu = 0; gpu < count; ++gpu) {
    int reaches = 0;
    if (gpu == device_->info().ordinal ||
        driver.DeviceCanAccessPeer(&reaches, gpu, device_->info().ordinal) != CUDA_SUCCESS) {
      continue;
    }
    if (reaches != 0) Allow(gpu, writable);
  }
}

absl::StatusOr<UniqueFd> CudaAllocation::Export() const {
  int fd = -1;
  const CudaScope scope(*device_);
  CKPTD_RETURN_IF_ERROR(device_->Check(
      device_->driver().MemExportToShareableHandle(&fd, parts_.handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting device memory"));
  return UniqueFd(fd);
}

absl::StatusOr<std::string> CudaAllocation::IpcHandle() const {
  CUipcMemHandle handle = {};
  const CudaScope scope(*device_);
  CKPTD_RETURN_IF_ERROR(device_->Check(device_->driver().IpcGetMemHandle(&handle, parts_.address),
                                       "naming device memory"));
  return std::string(handle.reserved, sizeof(handle.reserved));
}

// At exit the driver may already be shut down. It refuses then, and has freed everything.
void CudaAllocation::Free(const Parts& parts, const CudaDriver& driver) {
  if (parts.mapped) driver.MemUnmap(parts.address, parts.bytes);
  if (parts.address != 0) {
    if (parts.kind == Kind::kMapped) driver.MemAddressFree(parts.address, parts.bytes);
    if (parts.kind == Kind::kPlain) driver.MemFree(parts.address);
    if (parts.kind == Kind::kOpened) driver.IpcCloseMemHandle(parts.address);
  }
  if (parts.has_handle) driver.MemRelease(parts.handle);
}

void CudaAllocation::Reset() {
  const std::shared_ptr<CudaDevice> device = std::move(device_);  // must outlive the scope
  const Parts parts = std::exchange(parts_, Parts());
  if (device == nullptr) return;
  if (device->DeferFree([parts](const CudaDriver& driver) { Free(parts, driver); })) return;
  const CudaScope scope(*device);
  Free(parts, device->driver());
}

}  // namespace ckptd

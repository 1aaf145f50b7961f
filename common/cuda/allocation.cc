#include "common/cuda/allocation.h"

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
  return properties;
}

// The recommended one: NCCL registers memory only in such steps, and both sides of a
// hand-over must round alike.
absl::StatusOr<uint64_t> GranularityOf(const CudaDevice& device) {
  const CUmemAllocationProp properties = PropertiesOn(device);
  size_t granularity = 0;
  CKPTD_RETURN_IF_ERROR(device.Check(
      device.driver().MemGetAllocationGranularity(&granularity, &properties,
                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "asking for the allocation granularity"));
  return granularity;
}

}  // namespace

CudaAllocation& CudaAllocation::operator=(CudaAllocation&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, 0);
  has_handle_ = std::exchange(other.has_handle_, false);
  address_ = std::exchange(other.address_, 0);
  mapped_ = std::exchange(other.mapped_, false);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

absl::StatusOr<CudaAllocation> CudaAllocation::Create(std::shared_ptr<CudaDevice> device,
                                                      uint64_t bytes) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t granularity, GranularityOf(*device));
  CudaAllocation made;
  made.device_ = std::move(device);
  made.bytes_ = (bytes + granularity - 1) / granularity * granularity;
  const CudaScope scope(*made.device_);
  const CUmemAllocationProp properties = PropertiesOn(*made.device_);
  CKPTD_RETURN_IF_ERROR(made.device_->Check(
      made.device_->driver().MemCreate(&made.handle_, made.bytes_, &properties, 0),
      fmt::format("allocating {} bytes", made.bytes_)));
  made.has_handle_ = true;
  CKPTD_RETURN_IF_ERROR(made.Map(true));
  return made;
}

absl::StatusOr<CudaAllocation> CudaAllocation::Import(std::shared_ptr<CudaDevice> device, int fd,
                                                      uint64_t bytes, bool writable) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t granularity, GranularityOf(*device));
  if (bytes == 0 || bytes % granularity != 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("importing device memory: {} bytes are no whole number of {}",
                                 bytes, granularity));
  }
  CudaAllocation made;
  made.device_ = std::move(device);
  made.bytes_ = bytes;
  const CudaScope scope(*made.device_);
  // The driver takes the descriptor's number in the place of a pointer.
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  CKPTD_RETURN_IF_ERROR(made.device_->Check(
      made.device_->driver().MemImportFromShareableHandle(
          &made.handle_, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "importing device memory"));
  made.has_handle_ = true;
  CKPTD_RETURN_IF_ERROR(made.Map(writable));
  return made;
}

absl::Status CudaAllocation::Map(bool writable) {
  const CudaDriver& driver = device_->driver();
  CUdeviceptr address = 0;
  CKPTD_RETURN_IF_ERROR(device_->Check(driver.MemAddressReserve(&address, bytes_, 0, 0, 0),
                                       fmt::format("reserving {} bytes of addresses", bytes_)));
  address_ = address;
  CKPTD_RETURN_IF_ERROR(device_->Check(driver.MemMap(address_, bytes_, 0, handle_, 0),
                                       fmt::format("mapping {} bytes", bytes_)));
  mapped_ = true;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_->info().ordinal;
  access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return device_->Check(driver.MemSetAccess(address_, bytes_, &access, 1),
                        fmt::format("making {} bytes accessible", bytes_));
}

absl::StatusOr<UniqueFd> CudaAllocation::Export() const {
  int fd = -1;
  const CudaScope scope(*device_);
  CKPTD_RETURN_IF_ERROR(device_->Check(
      device_->driver().MemExportToShareableHandle(&fd, handle_,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting device memory"));
  return UniqueFd(fd);
}

void CudaAllocation::Reset() {
  const std::shared_ptr<CudaDevice> device = std::move(device_);  // outlives the scope
  if (device == nullptr) return;
  const CudaScope scope(*device);
  const CudaDriver& driver = device->driver();
  // A driver that is already down (at exit) refuses, and has let go of everything.
  if (std::exchange(mapped_, false)) driver.MemUnmap(address_, bytes_);
  if (const CUdeviceptr address = std::exchange(address_, 0); address != 0) {
    driver.MemAddressFree(address, bytes_);
  }
  if (std::exchange(has_handle_, false)) driver.MemRelease(handle_);
  bytes_ = 0;
}

}  // namespace ckptd

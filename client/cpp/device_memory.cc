#include "client/cpp/device_memory.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/status.h"
#include "common/cuda/allocation.h"
#include "common/cuda/stream.h"

namespace ckptd {
inline namespace client {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr size_t kReadStep = 1 << 20;

absl::StatusOr<CudaAllocation> CopyOf(const CudaAllocation& from) {
  const auto& device = from.device();
  CKPTD_ASSIGN_OR_RETURN(CudaAllocation copy, CudaAllocation::Create(device, from.bytes()));
  CKPTD_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Make(device));
  {
    const CudaScope scope(*device);
    CKPTD_RETURN_IF_ERROR(device->Check(
        device->driver().MemcpyDtoDAsync(copy.address(), from.address(), from.bytes(),
                                         stream.get()),
        "copying the shard"));
  }
  CKPTD_RETURN_IF_ERROR(stream.Wait(kPatience));
  return copy;
}

}  // namespace

struct DeviceMemory::Impl {
  CudaAllocation memory;
  uint64_t copied = 0;
};

DeviceMemory::DeviceMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMemory::DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;
DeviceMemory::~DeviceMemory() = default;

absl::StatusOr<DeviceMemory> DeviceMemory::Import(const UniqueFd& fd,
                                                  const std::string& device_uuid, uint64_t bytes,
                                                  AttachMode mode) {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  CKPTD_ASSIGN_OR_RETURN(GpuInfo gpu, FindGpu(*driver, device_uuid));
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device,
                         CudaDevice::Open(*driver, std::move(gpu)));
  auto impl = std::make_unique<Impl>();
  CKPTD_ASSIGN_OR_RETURN(
      impl->memory,
      CudaAllocation::Import(device, fd.get(), bytes, mode == AttachMode::kExclusive));
  if (mode == AttachMode::kPrivate) {
    CKPTD_ASSIGN_OR_RETURN(impl->memory, CopyOf(impl->memory));
    impl->copied = bytes;
  }
  return DeviceMemory(std::move(impl));
}

uint64_t DeviceMemory::address() const { return impl_ == nullptr ? 0 : impl_->memory.address(); }
uint64_t DeviceMemory::bytes() const { return impl_ == nullptr ? 0 : impl_->memory.bytes(); }
uint64_t DeviceMemory::copied_bytes() const { return impl_ == nullptr ? 0 : impl_->copied; }

const std::string& DeviceMemory::device_uuid() const {
  static const std::string none;
  return impl_ == nullptr ? none : impl_->memory.device()->info().uuid;
}

absl::Status DeviceMemory::Read(uint64_t offset, std::span<std::byte> out) const {
  const auto& device = impl_->memory.device();
  CKPTD_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Make(device));
  while (!out.empty()) {
    const size_t n = std::min(out.size(), kReadStep);
    {
      const CudaScope scope(*device);
      CKPTD_RETURN_IF_ERROR(
          device->Check(device->driver().MemcpyDtoHAsync(
                            out.data(), impl_->memory.address() + offset, n, stream.get()),
                        "reading the shard"));
    }
    CKPTD_RETURN_IF_ERROR(stream.Wait(kPatience));
    offset += n;
    out = out.subspan(n);
  }
  return absl::OkStatus();
}

bool HasDeviceMemory() { return CudaDriver::Present(); }

absl::Status CheckDeviceVisible(const std::string& device_uuid) {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  return FindGpu(*driver, device_uuid).status();
}

}  // namespace client
}  // namespace ckptd

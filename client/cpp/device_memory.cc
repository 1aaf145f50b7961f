#include "client/cpp/device_memory.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cuda/allocation.h"
#include "common/cuda/stream.h"

namespace ckptd {
inline namespace client {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr size_t kReadStep = 1 << 20;

// Memory of other processes that this process has open. Some drivers refuse to open a handle
// twice, so users of one handle share it.
class OpenedMemory {
 public:
  // Closed by its last user.
  absl::StatusOr<std::shared_ptr<const CudaAllocation>> Open(
      const std::shared_ptr<CudaDevice>& device, const std::string& handle, uint64_t bytes) {
    MutexLock lock(mutex_);
    auto at = open_.find(handle);
    if (at == open_.end()) {
      CKPTD_ASSIGN_OR_RETURN(CudaAllocation memory, CudaAllocation::Open(device, handle, bytes));
      at = open_.emplace(handle, Entry{std::move(memory), 0}).first;
    } else if (bytes != at->second.memory.bytes()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       "opening device memory: it is open already, with another size");
    }
    ++at->second.users;
    return std::shared_ptr<const CudaAllocation>(
        &at->second.memory, [this, handle](const CudaAllocation*) { LetGo(handle); });
  }

 private:
  struct Entry {
    CudaAllocation memory;
    int users = 0;
  };

  void LetGo(const std::string& handle) {
    MutexLock lock(mutex_);
    const auto at = open_.find(handle);
    if (--at->second.users == 0) open_.erase(at);
  }

  Mutex mutex_;
  std::map<std::string, Entry> open_ ABSL_GUARDED_BY(mutex_);
};

OpenedMemory& Opened() {
  static OpenedMemory* const all = new OpenedMemory;  // outlives users that free memory at exit
  return *all;
}

absl::StatusOr<std::shared_ptr<CudaDevice>> OpenDevice(const std::string& uuid) {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  CKPTD_ASSIGN_OR_RETURN(GpuInfo gpu, FindGpu(*driver, uuid));
  return CudaDevice::Open(*driver, std::move(gpu));
}

// A copy of the same kind, because a GPU whose memory is lent by CUDA IPC may have no other.
absl::StatusOr<CudaAllocation> CopyOf(const CudaAllocation& from) {
  const auto& device = from.device();
  CKPTD_ASSIGN_OR_RETURN(CudaAllocation copy,
                         from.by_name() ? CudaAllocation::CreatePlain(device, from.bytes())
                                        : CudaAllocation::Create(device, from.bytes()));
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

// Closes `lease` after everything that the device has deferred before.
void CloseWhenIdle(CudaDevice& device, UniqueFd lease) {
  // The function must be copyable, and a descriptor is not.
  const auto held = std::make_shared<const UniqueFd>(std::move(lease));
  // If the device is not Busy, the lease closes here, and earlier deferred frees may be left.
  if (!device.DeferFree([held](const CudaDriver&) {})) device.FreeDeferred();
}

}  // namespace

struct DeviceMemory::Impl {
  std::shared_ptr<const CudaAllocation> memory;
  uint64_t copied = 0;

  // For PRIVATE memory only the copy is kept. The client's other GPUs get access to the memory.
  static absl::StatusOr<std::unique_ptr<Impl>> Make(std::shared_ptr<const CudaAllocation> lent,
                                                    AttachMode mode) {
    auto impl = std::make_unique<Impl>();
    impl->memory = std::move(lent);
    if (mode == AttachMode::kPrivate) {
      CKPTD_ASSIGN_OR_RETURN(CudaAllocation copy, CopyOf(*impl->memory));
      impl->memory = std::make_shared<const CudaAllocation>(std::move(copy));
      impl->copied = impl->memory->bytes();
    }
    impl->memory->AllowPeerAccess(mode != AttachMode::kShared);
    return impl;
  }
};

DeviceMemory::DeviceMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMemory::DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;
DeviceMemory::~DeviceMemory() = default;

absl::StatusOr<DeviceMemory> DeviceMemory::Import(const UniqueFd& fd,
                                                  const std::string& device_uuid, uint64_t bytes,
                                                  AttachMode mode) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device, OpenDevice(device_uuid));
  CKPTD_ASSIGN_OR_RETURN(
      CudaAllocation memory,
      CudaAllocation::Import(device, fd.get(), bytes, mode == AttachMode::kExclusive));
  CKPTD_ASSIGN_OR_RETURN(
      auto impl, Impl::Make(std::make_shared<const CudaAllocation>(std::move(memory)), mode));
  return DeviceMemory(std::move(impl));
}

absl::StatusOr<DeviceMemory> DeviceMemory::Open(const std::string& ipc_handle,
                                                const std::string& device_uuid, uint64_t bytes,
                                                AttachMode mode) {
  if (mode == AttachMode::kExclusive) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     "opening device memory EXCLUSIVE: what is handed out as CUDA_IPC stays the "
                     "daemon's; acquire it PRIVATE, or load it as VMM_FD");
  }
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device, OpenDevice(device_uuid));
  CKPTD_ASSIGN_OR_RETURN(auto memory, Opened().Open(device, ipc_handle, bytes));
  CKPTD_ASSIGN_OR_RETURN(auto impl, Impl::Make(std::move(memory), mode));
  return DeviceMemory(std::move(impl));
}

void DeviceMemory::Reset(UniqueFd lease) {
  if (impl_ == nullptr) return;
  const std::shared_ptr<CudaDevice> device = impl_->memory->device();
  impl_.reset();
  CloseWhenIdle(*device, std::move(lease));
}

uint64_t DeviceMemory::address() const { return impl_ == nullptr ? 0 : impl_->memory->address(); }
uint64_t DeviceMemory::bytes() const { return impl_ == nullptr ? 0 : impl_->memory->bytes(); }
uint64_t DeviceMemory::copied_bytes() const { return impl_ == nullptr ? 0 : impl_->copied; }

const std::string& DeviceMemory::device_uuid() const {
  static const std::string none;
  return impl_ == nullptr ? none : impl_->memory->device()->info().uuid;
}

absl::Status DeviceMemory::Read(uint64_t offset, std::span<std::byte> out) const {
  const auto& device = impl_->memory->device();
  CKPTD_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Make(device));
  while (!out.empty()) {
    const size_t n = std::min(out.size(), kReadStep);
    {
      const CudaScope scope(*device);
      CKPTD_RETURN_IF_ERROR(
          device->Check(device->driver().MemcpyDtoHAsync(
                            out.data(), impl_->memory->address() + offset, n, stream.get()),
                        "reading the shard"));
    }
    CKPTD_RETURN_IF_ERROR(stream.Wait(kPatience));
    offset += n;
    out = out.subspan(n);
  }
  return absl::OkStatus();
}

void EndLease(UniqueFd lease, const std::string& device_uuid) {
  const auto device = OpenDevice(device_uuid);
  if (device.ok()) CloseWhenIdle(**device, std::move(lease));
}

bool HasDeviceMemory() { return CudaDriver::Present(); }

absl::Status CheckDeviceVisible(const std::string& device_uuid) {
  CKPTD_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Load());
  return FindGpu(*driver, device_uuid).status();
}

}  // namespace client
}  // namespace ckptd

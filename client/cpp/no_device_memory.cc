// Replaces device_memory.cc if CUDA's headers are missing at build time.
#include "client/cpp/device_memory.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {

struct DeviceMemory::Impl {};

DeviceMemory::DeviceMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMemory::DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;
DeviceMemory::~DeviceMemory() = default;

absl::StatusOr<DeviceMemory> DeviceMemory::Import(const UniqueFd&, const std::string& device_uuid,
                                                  uint64_t, AttachMode) {
  return CheckDeviceVisible(device_uuid);
}

absl::StatusOr<DeviceMemory> DeviceMemory::Open(const std::string&, const std::string& device_uuid,
                                                uint64_t, AttachMode) {
  return CheckDeviceVisible(device_uuid);
}

void DeviceMemory::Reset(UniqueFd) {}
uint64_t DeviceMemory::address() const { return 0; }
uint64_t DeviceMemory::bytes() const { return 0; }
uint64_t DeviceMemory::copied_bytes() const { return 0; }
const std::string& DeviceMemory::device_uuid() const {
  static const std::string none;
  return none;
}
absl::Status DeviceMemory::Read(uint64_t, std::span<std::byte>) const {
  return absl::InternalError("there is no device memory");
}
void EndLease(UniqueFd, const std::string&) {}

bool HasDeviceMemory() { return false; }

absl::Status CheckDeviceVisible(const std::string& device_uuid) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                   "importing memory of " + device_uuid +
                       ": this client was built without CUDA's headers; build it with "
                       "CKPTD_CUDA=ON",
                   {{"device", device_uuid}});
}

}  // namespace client
}  // namespace ckptd

// A slab in the memory of a GPU, imported into this process. This part of attaching needs the
// CUDA driver, which is opened at run time.
#ifndef CKPTD_CLIENT_CPP_DEVICE_MEMORY_H_
#define CKPTD_CLIENT_CPP_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/attach_mode.h"
#include "common/base/posix.h"

namespace ckptd {
inline namespace client {

// Move-only. May be destroyed in any thread and at any time, once work of this process on the
// memory has ended. Imported memory stays as long as any process has it, so neither the end of
// the daemon nor of this process takes it from the other. Opened memory (CUDA_IPC) is the
// daemon's: free it before the lease (Reset). Its content is undefined once the daemon has ended.
class DeviceMemory {
 public:
  DeviceMemory();
  // Maps the allocation behind `fd`: read-only for SHARED, read-write for EXCLUSIVE. For PRIVATE
  // it is copied on the device, once. `bytes` is the size of the whole allocation. Errors:
  // FailedPrecondition NO_DEVICE without a driver, or if that GPU is not visible here;
  // InvalidArgument INVALID_REQUEST for a size that no allocation has; ResourceExhausted
  // NO_MEMORY; Unavailable DEVICE_FAILED. Nothing is kept after an error.
  static absl::StatusOr<DeviceMemory> Import(const UniqueFd& fd, const std::string& device_uuid,
                                             uint64_t bytes, AttachMode mode);
  // Opens the daemon's allocation by its 64 bytes (CUDA_IPC). Users in this process share it.
  // SHARED memory is not protected against writes. PRIVATE memory is copied, and then nothing
  // stays open. Errors: as Import; FailedPrecondition HANDLE_KIND for EXCLUSIVE, and if daemon
  // and client do not share a PID namespace.
  static absl::StatusOr<DeviceMemory> Open(const std::string& ipc_handle,
                                           const std::string& device_uuid, uint64_t bytes,
                                           AttachMode mode);
  DeviceMemory(DeviceMemory&&) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) noexcept;
  ~DeviceMemory();

  // Frees the memory, if there is any, then ends its lease. If unfinished work may still use the
  // memory, both happen when that has ended.
  void Reset(UniqueFd lease);

  bool valid() const { return impl_ != nullptr; }
  // Address of the first byte in this process's context of the device. 0 if not valid.
  uint64_t address() const;
  uint64_t bytes() const;
  const std::string& device_uuid() const;
  uint64_t copied_bytes() const;  // copied on the device by Import or Open
  // Copies bytes [offset, offset + out.size()) to the host. Blocks for at most 10 s per MiB.
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Impl;
  explicit DeviceMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Ends the lease of memory of that GPU that could not be imported or opened, as Reset does.
void EndLease(UniqueFd lease, const std::string& device_uuid);

// Whether this process can import device memory: it has a driver.
bool HasDeviceMemory();
// FailedPrecondition NO_DEVICE if the GPU is not visible here. Check this before sending a token,
// which may take the memory from the daemon.
absl::Status CheckDeviceVisible(const std::string& device_uuid);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_DEVICE_MEMORY_H_

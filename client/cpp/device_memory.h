// A slab in the memory of a GPU, imported into this process: the part of attaching that
// needs the CUDA driver, which is opened at run time.
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

// Move-only; unmaps on destruction, from any thread and at any time, which work of this
// process on the memory must have ended by. What was imported stays while anybody has it:
// neither the daemon's end nor ours takes it from the other. What was opened is the
// daemon's: it must have gone before the lease (Reset), and is undefined once the daemon has
// ended.
class DeviceMemory {
 public:
  DeviceMemory();
  // Maps the allocation behind `fd`: read-only for SHARED, read-write for EXCLUSIVE; for
  // PRIVATE it is copied on the device, once. `bytes` is the whole allocation's. Errors:
  // FailedPrecondition NO_DEVICE without a driver, or when that GPU is not visible here;
  // InvalidArgument INVALID_REQUEST for a size that no allocation has; ResourceExhausted
  // NO_MEMORY; Unavailable DEVICE_FAILED. Nothing is kept after one.
  static absl::StatusOr<DeviceMemory> Import(const UniqueFd& fd, const std::string& device_uuid,
                                             uint64_t bytes, AttachMode mode);
  // Opens the daemon's allocation by its 64 bytes (CUDA_IPC), once in this process however
  // many ask for it. Nothing keeps SHARED memory from being written; PRIVATE is copied, and
  // then keeps nothing open. Errors: as Import; FailedPrecondition HANDLE_KIND for
  // EXCLUSIVE, and where daemon and client do not share a PID namespace.
  static absl::StatusOr<DeviceMemory> Open(const std::string& ipc_handle,
                                           const std::string& device_uuid, uint64_t bytes,
                                           AttachMode mode);
  DeviceMemory(DeviceMemory&&) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) noexcept;
  ~DeviceMemory();

  // Lets go of the memory, if there is any, then of its lease: at once, or where work that was
  // given up may still reach the memory, once that has ended.
  void Reset(UniqueFd lease);

  bool valid() const { return impl_ != nullptr; }
  // Of the first byte, in this process's context of the device; 0 when not valid.
  uint64_t address() const;
  uint64_t bytes() const;
  const std::string& device_uuid() const;
  uint64_t copied_bytes() const;  // on the device, by Import
  // Copies bytes [offset, offset + out.size()) to the host; blocks, at most 10 s a MiB.
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Impl;
  explicit DeviceMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Ends the lease of memory of that GPU which could not be imported or opened, as Reset does.
void EndLease(UniqueFd lease, const std::string& device_uuid);

// Whether this process can import device memory at all: a driver is there.
bool HasDeviceMemory();
// Before a token is shown, which may take the memory from the daemon: FailedPrecondition
// NO_DEVICE when the GPU is not visible here.
absl::Status CheckDeviceVisible(const std::string& device_uuid);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_DEVICE_MEMORY_H_

// Device memory that several processes can map. There are two kinds:
// - Made by cuMemCreate and passed on as a descriptor. It lives as long as any handle, mapping or
//   descriptor of it in any process, so neither the end of the daemon nor of the client takes it
//   from the other.
// - Made by cuMemAlloc and identified by 64 bytes (legacy CUDA IPC). Its maker owns it. When the
//   maker frees it, other processes see undefined content.
#ifndef CKPTD_COMMON_CUDA_ALLOCATION_H_
#define CKPTD_COMMON_CUDA_ALLOCATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/cuda/device.h"

namespace ckptd {

// Memory and its mapping in this process. Move-only. The destructor unmaps and frees; it needs no
// current context. By then all work on the memory must have ended, or its stream must have been
// retired (CudaStream does that). The device then keeps the memory until that work has ended.
class CudaAllocation {
 public:
  CudaAllocation() = default;
  // New memory of at least `bytes` (see bytes()), mapped for reading and writing, with
  // unspecified content. Errors: ResourceExhausted NO_MEMORY, DEVICE_FAILED.
  static absl::StatusOr<CudaAllocation> Create(std::shared_ptr<CudaDevice> device, uint64_t bytes);
  // The bytes that Create, or CreatePlain, takes for `bytes`. Errors: DEVICE_FAILED.
  static absl::StatusOr<uint64_t> TakenFor(const CudaDevice& device, uint64_t bytes, bool plain);
  // Maps the memory of a descriptor from Export, which the caller keeps. `bytes` is that
  // allocation's bytes(). A read-only mapping protects against mistakes, not against this
  // process: a write through it ends the context. Errors: DEVICE_FAILED, InvalidArgument
  // INVALID_REQUEST for a size that no allocation has.
  static absl::StatusOr<CudaAllocation> Import(std::shared_ptr<CudaDevice> device, int fd,
                                               uint64_t bytes, bool writable);
  // New memory of the second kind, an allocation of its own in whole blocks of 2 MiB, so that its
  // handle shows nothing else. Errors: as Create.
  static absl::StatusOr<CudaAllocation> CreatePlain(std::shared_ptr<CudaDevice> device,
                                                    uint64_t bytes);
  // Maps the memory of another process's IpcHandle, always writable. A process can open a handle
  // only once at a time. Errors: InvalidArgument INVALID_REQUEST for an invalid handle or a wrong
  // size; FailedPrecondition HANDLE_KIND if the driver does not know the maker (another PID
  // namespace, or this process); DEVICE_FAILED.
  static absl::StatusOr<CudaAllocation> Open(std::shared_ptr<CudaDevice> device,
                                             std::string_view ipc_handle, uint64_t bytes);
  ~CudaAllocation() { Reset(); }
  CudaAllocation(CudaAllocation&& other) noexcept { *this = std::move(other); }
  CudaAllocation& operator=(CudaAllocation&& other) noexcept;
  CudaAllocation(const CudaAllocation&) = delete;
  CudaAllocation& operator=(const CudaAllocation&) = delete;

  bool valid() const { return parts_.address != 0; }
  CUdeviceptr address() const { return parts_.address; }
  // Made by CreatePlain or Open.
  bool by_name() const { return parts_.kind != Kind::kMapped; }
  // A multiple of the device's granularity (2 MiB on all GPUs so far).
  uint64_t bytes() const { return parts_.bytes; }
  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  // A descriptor that other processes can import. Only after Create. Errors: DEVICE_FAILED.
  absl::StatusOr<UniqueFd> Export() const;
  // Gives this process's other GPUs access to memory from Create or Import, as they have to other
  // memory. A GPU that cannot have it, without a link or room, is skipped.
  void AllowPeerAccess(bool writable) const;
  // 64 bytes that other processes can open. Only after CreatePlain. Errors: DEVICE_FAILED.
  absl::StatusOr<std::string> IpcHandle() const;
  void Reset();

 private:
  enum class Kind : uint8_t { kMapped, kPlain, kOpened };
  // The driver's resources.
  struct Parts {
    Kind kind = Kind::kMapped;
    CUmemGenericAllocationHandle handle = 0;
    bool has_handle = false;  // needed because 0 may be a handle
    CUdeviceptr address = 0;  // reserved, allocated or opened
    bool mapped = false;
    uint64_t bytes = 0;
  };

  static void Free(const Parts& parts, const CudaDriver& driver);
  absl::Status Map(bool writable);
  CUresult Allow(CUdevice gpu, bool writable) const;
  absl::Status CheckRange() const;

  std::shared_ptr<CudaDevice> device_;
  Parts parts_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_CUDA_ALLOCATION_H_

// Device memory that several processes can map, of two kinds:
// - made by cuMemCreate, passed on as a descriptor. It lives as long as any handle,
//   mapping or descriptor of it, in whatever process: neither the daemon's end nor the
//   client's takes it from the other;
// - made by cuMemAlloc, named by 64 bytes (legacy CUDA IPC). It is its maker's: others
//   have it only until then, and what they see afterwards is undefined.
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

// Memory and its mapping in this process. Move-only; unmaps and lets go on destruction,
// which needs no context to be current. Work on it must have ended by then, or its stream have
// been left to the device (CudaStream), which then keeps the memory until it has.
class CudaAllocation {
 public:
  CudaAllocation() = default;
  // Fresh memory of at least `bytes` (see bytes()), mapped for reading and writing, of
  // unspecified content. Errors: ResourceExhausted NO_MEMORY, DEVICE_FAILED.
  static absl::StatusOr<CudaAllocation> Create(std::shared_ptr<CudaDevice> device, uint64_t bytes);
  // What Create, or CreatePlain, takes for so many bytes. Errors: DEVICE_FAILED.
  static absl::StatusOr<uint64_t> TakenFor(const CudaDevice& device, uint64_t bytes, bool plain);
  // The memory behind a descriptor from Export, which stays the caller's. `bytes` is
  // that allocation's bytes(). A read-only mapping protects against mistakes, not
  // against this process: a write through it ends the context. Errors: DEVICE_FAILED,
  // InvalidArgument INVALID_REQUEST for a size that no allocation has.
  static absl::StatusOr<CudaAllocation> Import(std::shared_ptr<CudaDevice> device, int fd,
                                               uint64_t bytes, bool writable);
  // Fresh memory as Create makes it, of the second kind: an allocation of its own, in
  // whole blocks of 2 MiB, so that its name shows nothing else. Errors: as Create.
  static absl::StatusOr<CudaAllocation> CreatePlain(std::shared_ptr<CudaDevice> device,
                                                    uint64_t bytes);
  // What another process's IpcHandle names; always writable. One process does this once for
  // one handle at a time. Errors: InvalidArgument INVALID_REQUEST for what is no handle
  // or a size that the memory has not; FailedPrecondition HANDLE_KIND where the driver
  // does not know the maker (another PID namespace, or this very process);
  // DEVICE_FAILED.
  static absl::StatusOr<CudaAllocation> Open(std::shared_ptr<CudaDevice> device,
                                             std::string_view ipc_handle, uint64_t bytes);
  ~CudaAllocation() { Reset(); }
  CudaAllocation(CudaAllocation&& other) noexcept { *this = std::move(other); }
  CudaAllocation& operator=(CudaAllocation&& other) noexcept;
  CudaAllocation(const CudaAllocation&) = delete;
  CudaAllocation& operator=(const CudaAllocation&) = delete;

  bool valid() const { return parts_.address != 0; }
  CUdeviceptr address() const { return parts_.address; }
  // Of CreatePlain or Open.
  bool by_name() const { return parts_.kind != Kind::kMapped; }
  // A multiple of the device's granularity (2 MiB on all so far).
  uint64_t bytes() const { return parts_.bytes; }
  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  // Of Create: a descriptor that others import. Errors: DEVICE_FAILED.
  absl::StatusOr<UniqueFd> Export() const;
  // Has the process's other GPUs reach what Create or Import mapped, as they reach any program's
  // own memory. One that cannot, for want of a link or of room, is as one without.
  void LetPeersIn(bool writable) const;
  // Of CreatePlain: 64 bytes that others open. Errors: DEVICE_FAILED.
  absl::StatusOr<std::string> IpcHandle() const;
  void Reset();

 private:
  enum class Kind : uint8_t { kMapped, kPlain, kOpened };
  // What the driver has of it.
  struct Parts {
    Kind kind = Kind::kMapped;
    CUmemGenericAllocationHandle handle = 0;
    bool has_handle = false;  // 0 may be a handle
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

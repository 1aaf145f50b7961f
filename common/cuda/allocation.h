// Device memory that several processes can map: made by cuMemCreate, passed on as a
// descriptor. It lives as long as any handle, mapping or descriptor of it, in whatever
// process: neither the daemon's end nor the client's takes it from the other.
#ifndef CKPTD_COMMON_CUDA_ALLOCATION_H_
#define CKPTD_COMMON_CUDA_ALLOCATION_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/cuda/device.h"

namespace ckptd {

// Memory and its mapping in this process. Move-only; unmaps and lets go on destruction,
// which needs no context to be current. Work on it must have ended by then.
class CudaAllocation {
 public:
  CudaAllocation() = default;
  // Fresh memory of at least `bytes` (see bytes()), mapped for reading and writing, of
  // unspecified content. Errors: ResourceExhausted NO_MEMORY, DEVICE_FAILED.
  static absl::StatusOr<CudaAllocation> Create(std::shared_ptr<CudaDevice> device, uint64_t bytes);
  // The memory behind a descriptor from Export, which stays the caller's. `bytes` is
  // that allocation's bytes(). A read-only mapping protects against mistakes, not
  // against this process: a write through it ends the context. Errors: DEVICE_FAILED,
  // InvalidArgument INVALID_REQUEST for a size that no allocation has.
  static absl::StatusOr<CudaAllocation> Import(std::shared_ptr<CudaDevice> device, int fd,
                                               uint64_t bytes, bool writable);
  ~CudaAllocation() { Reset(); }
  CudaAllocation(CudaAllocation&& other) noexcept { *this = std::move(other); }
  CudaAllocation& operator=(CudaAllocation&& other) noexcept;
  CudaAllocation(const CudaAllocation&) = delete;
  CudaAllocation& operator=(const CudaAllocation&) = delete;

  bool valid() const { return address_ != 0; }
  CUdeviceptr address() const { return address_; }
  // A multiple of the device's granularity (2 MiB on all so far).
  uint64_t bytes() const { return bytes_; }
  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  // A descriptor that others import. Errors: DEVICE_FAILED.
  absl::StatusOr<UniqueFd> Export() const;
  void Reset();

 private:
  absl::Status Map(bool writable);

  std::shared_ptr<CudaDevice> device_;
  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false;  // 0 may be a handle
  CUdeviceptr address_ = 0;  // reserved
  bool mapped_ = false;
  uint64_t bytes_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_CUDA_ALLOCATION_H_

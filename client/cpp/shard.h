// A shard of a checkpoint, mapped into this process: host memory, or a GPU's.
#ifndef CKPTD_CLIENT_CPP_SHARD_H_
#define CKPTD_CLIENT_CPP_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/attach.h"
#include "common/base/attach_mode.h"
#include "common/checkpoint/dtype.h"
#include "common/checkpoint/index.h"

namespace ckptd {
inline namespace client {

struct ShardTensor {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;                // local
  // in the slab; a multiple of 512, but of less for members of flat parameters
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t padded_bytes = 0;       // >= bytes: includes the zeros of FSDP2's padding
  std::optional<uint64_t> digest;  // XXH3, see common/base/digest.h
  // Valid while the shard lives. A device address if the shard is in device memory: for kernels
  // and the driver, not for the processor.
  const std::byte* data = nullptr;
};

// This rank's part of a flat parameter. Its members are tensors of the shard and lie in it.
struct ShardFlat {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  uint64_t offset = 0;    // in the slab, a multiple of 512
  uint64_t elements = 0;  // with padding
};

// The tensors of a shard, before they have addresses.
struct ShardTable {
  std::vector<ShardTensor> tensors;
  std::vector<ShardFlat> flats;
  // Further name -> index into `tensors`.
  std::vector<std::pair<std::string, uint32_t>> aliases;
  // Rank form: tensors of the source that this rank did not request.
  std::vector<std::string> unexpected;
};

// Owns the mapping and the lease, and ends both. Move-only; pointers into it survive a move.
// Needs no Client once it exists. Reading from several threads is safe.
class Shard {
 public:
  // Takes over an attached slab. Errors: DataLoss INVALID_REPLY if the table does not fit the
  // mapping or a name occurs twice.
  static absl::StatusOr<Shard> Create(Attached attached, ShardTable table, AttachMode mode,
                                      std::string lease);

  Shard(Shard&&) noexcept = default;
  Shard& operator=(Shard&&) noexcept = default;
  ~Shard() { Release(); }

  // In the daemon's order.
  const std::vector<ShardTensor>& tensors() const { return table_.tensors; }
  // Rank form: flat parameters, in the order of the request.
  const std::vector<ShardFlat>& flats() const { return table_.flats; }
  // Sorted by alias.
  const std::vector<std::pair<std::string, uint32_t>>& aliases() const { return table_.aliases; }
  // By name or alias. Null if there is none. O(log n).
  const ShardTensor* Find(std::string_view name) const;
  // Rank form: tensors of the source that this rank did not request.
  const std::vector<std::string>& unexpected() const { return table_.unexpected; }

  AttachMode mode() const { return mode_; }
  const std::string& lease() const { return lease_; }
  uint64_t slab_bytes() const { return attached_.slab_bytes; }

  // UUID of the GPU that has the shard. Empty: host memory.
  const std::string& device_uuid() const { return attached_.device.device_uuid(); }
  // Bytes that attaching has copied: only for PRIVATE device memory.
  uint64_t copied_bytes() const { return attached_.device.copied_bytes(); }

  // Copies [offset, offset + out.size()) of a tensor of this shard, including its padding, from
  // host or device memory. Errors: InvalidArgument INVALID_REQUEST, and DeviceMemory::Read's.
  absl::Status Read(const ShardTensor& tensor, uint64_t offset, std::span<std::byte> out) const;

  // Writable bytes of a tensor of this shard, including its padding. Empty if the processor
  // cannot write them: for device memory, and for a SHARED shard, where a write would end the
  // process with SIGSEGV.
  std::span<std::byte> MutableBytes(const ShardTensor& tensor) const;

  // Unmaps the shard and ends the lease. tensors() is empty afterwards. Idempotent.
  void Release();

 private:
  Shard(Attached attached, ShardTable table, AttachMode mode, std::string lease);

  Attached attached_;
  ShardTable table_;
  std::vector<uint32_t> by_name_;  // indices of tensors, sorted by name
  AttachMode mode_ = AttachMode::kShared;
  std::string lease_;
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_SHARD_H_

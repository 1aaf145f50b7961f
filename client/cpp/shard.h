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
#include "common/source/dtype.h"
#include "common/source/index.h"

namespace ckptd {
inline namespace client {

struct ShardTensor {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  Shape shape;                // local
  uint64_t offset = 0;        // in the slab; a multiple of 512, for members of flat parameters less
  uint64_t bytes = 0;
  uint64_t padded_bytes = 0;  // >= bytes: with the zero tail of FSDP2 padding
  std::optional<uint64_t> digest;  // XXH3, see common/base/digest.h
  // Valid while the shard lives. An address of the device when the shard is in device
  // memory: for kernels and the driver, not for the processor.
  const std::byte* data = nullptr;
};

// A flat parameter's part: its members are tensors of the shard and lie in it.
struct ShardFlat {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;
  uint64_t offset = 0;    // in the slab, a multiple of 512
  uint64_t elements = 0;  // padding included
};

// The tensors of a shard before they have addresses.
struct ShardTable {
  std::vector<ShardTensor> tensors;
  std::vector<ShardFlat> flats;
  // Further name -> index into `tensors`.
  std::vector<std::pair<std::string, uint32_t>> aliases;
  // Rank form: tensors of the source that this rank did not state.
  std::vector<std::string> unexpected;
};

// Owns the mapping and the lease: both end with it. Move-only; pointers into it
// survive a move. Needs no Client once it exists. Reading from several threads
// is safe.
class Shard {
 public:
  // Takes over what was attached. Errors: DataLoss INVALID_REPLY when
  // the table does not fit the mapping or a name comes twice.
  static absl::StatusOr<Shard> Create(Attached attached, ShardTable table, AttachMode mode,
                                      std::string lease);

  Shard(Shard&&) noexcept = default;
  Shard& operator=(Shard&&) noexcept = default;
  ~Shard() { Release(); }

  // In the daemon's order.
  const std::vector<ShardTensor>& tensors() const { return table_.tensors; }
  // Rank form: flat parameters, in the order stated.
  const std::vector<ShardFlat>& flats() const { return table_.flats; }
  // Sorted by alias.
  const std::vector<std::pair<std::string, uint32_t>>& aliases() const { return table_.aliases; }
  // By name or alias; nullptr when there is none. O(log n).
  const ShardTensor* Find(std::string_view name) const;
  // Rank form: tensors of the source that this rank did not state.
  const std::vector<std::string>& unexpected() const { return table_.unexpected; }

  AttachMode mode() const { return mode_; }
  const std::string& lease() const { return lease_; }
  uint64_t slab_bytes() const { return attached_.slab_bytes; }

  // UUID of the GPU whose memory the shard is in; empty: host memory.
  const std::string& device_uuid() const { return attached_.device.device_uuid(); }
  // Bytes that attaching copied: PRIVATE device memory only.
  uint64_t copied_bytes() const { return attached_.device.copied_bytes(); }

  // Copies [offset, offset + out.size()) of a tensor of this shard, its padding
  // included, from wherever it lies. Errors: InvalidArgument INVALID_REQUEST, and
  // DeviceMemory::Read's.
  absl::Status Read(const ShardTensor& tensor, uint64_t offset, std::span<std::byte> out) const;

  // Writable bytes of a tensor of this shard, its padding included, where the processor
  // can write: empty for device memory, and for a SHARED one, where a write would end
  // the process by SIGSEGV.
  std::span<std::byte> MutableBytes(const ShardTensor& tensor) const;

  // Unmaps and ends the lease; tensors() is empty afterwards. Idempotent.
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

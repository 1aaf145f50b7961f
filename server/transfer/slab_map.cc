#include "server/transfer/slab_map.h"

#include <cstring>

#include "common/base/status.h"

namespace ckptd {

absl::StatusOr<std::span<const std::byte>> SlabMap::Read(uint64_t offset, size_t bytes,
                                                         std::vector<std::byte>& scratch) const {
  if (staged_ != nullptr) {
    scratch.resize(bytes);
    CKPTD_RETURN_IF_ERROR(staged_->Read(offset, scratch));
    return std::span<const std::byte>(scratch);
  }
  std::span<const std::byte> in_place;
  size_t gathered = 0;
  ForEach(offset, bytes, [&](const std::byte* data, size_t n) {
    if (n == bytes) {
      in_place = {data, n};
      return;
    }
    scratch.resize(bytes);
    std::memcpy(scratch.data() + gathered, data, n);
    gathered += n;
  });
  if (!in_place.empty()) return in_place;
  return std::span<const std::byte>(scratch.data(), gathered);
}

}  // namespace ckptd

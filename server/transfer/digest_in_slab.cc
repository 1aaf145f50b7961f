#include <algorithm>
#include <vector>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "server/transfer/slab_map.h"
#include "server/transfer/transfer.h"

namespace ckptd {

absl::StatusOr<uint64_t> DigestInSlab(const SlabView& slab, uint64_t offset, uint64_t bytes) {
  const SlabMap map(slab);
  std::vector<std::byte> scratch;
  std::vector<uint64_t> blocks;
  uint64_t done = 0;
  do {
    const size_t n = std::min(bytes - done, kDigestBlockBytes);
    CKPTD_ASSIGN_OR_RETURN(const auto block, map.Read(offset + done, n, scratch));
    blocks.push_back(Xxh3(block));
    done += n;
  } while (done < bytes);
  return CombineBlockDigests(blocks);
}

}  // namespace ckptd

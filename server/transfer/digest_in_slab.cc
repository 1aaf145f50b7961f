#include <algorithm>
#include <cstring>
#include <vector>

#include "common/base/digest.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// Bytes [offset, offset + n) of the slab: in place when one segment has them,
// else gathered in `scratch`.
std::span<const std::byte> Range(const SlabView& slab, uint64_t offset, size_t n,
                                 std::vector<std::byte>& scratch) {
  uint64_t start = 0;
  size_t gathered = 0;
  for (const std::span<std::byte> segment : slab.segments) {
    const uint64_t end = start + segment.size();
    const uint64_t from = offset + gathered;
    if (from >= start && from < end && gathered < n) {
      const size_t part = std::min<size_t>(n - gathered, end - from);
      if (part == n) return segment.subspan(from - start, n);
      scratch.resize(n);
      std::memcpy(scratch.data() + gathered, segment.data() + (from - start), part);
      gathered += part;
    }
    start = end;
  }
  return {scratch.data(), gathered};
}

}  // namespace

uint64_t DigestInSlab(const SlabView& slab, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> scratch;
  std::vector<uint64_t> blocks;
  uint64_t done = 0;
  do {
    const size_t n = std::min(bytes - done, kDigestBlockBytes);
    blocks.push_back(Xxh3(Range(slab, offset + done, n, scratch)));
    done += n;
  } while (done < bytes);
  return CombineBlockDigests(blocks);
}

}  // namespace ckptd

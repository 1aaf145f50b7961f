// XXH3-64 with the widest vectors of this CPU, and the tensor digest built on it.
#ifndef CKPTD_COMMON_BASE_DIGEST_H_
#define CKPTD_COMMON_BASE_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ckptd {

// XXH3-64, seed 0. The packaged library is an SSE2 build; this one picks
// AVX2 or AVX-512 at run time (3x faster; same values).
uint64_t Xxh3(std::span<const std::byte> bytes);
uint64_t Xxh3(std::string_view text);

// Tensors longer than this are hashed in blocks of it.
inline constexpr uint64_t kDigestBlockBytes = uint64_t{1} << 20;

// Digest of a tensor from those of its blocks (at least one; of an empty tensor
// the XXH3 of no bytes): a single block's digest is the tensor's.
uint64_t CombineBlockDigests(std::span<const uint64_t> blocks);

// Digest of a tensor that lies in one piece of memory.
uint64_t TensorDigest(std::span<const std::byte> bytes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_DIGEST_H_

// XXH3-64 with the widest vectors of this CPU, and the digest of a tensor.
#ifndef CKPTD_COMMON_BASE_DIGEST_H_
#define CKPTD_COMMON_BASE_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ckptd {

// XXH3-64, seed 0. The packaged library is an SSE2 build. This one uses AVX2 or AVX-512 if the
// CPU has them (3x faster; same values). Thread-safe.
uint64_t Xxh3(std::span<const std::byte> bytes);
uint64_t Xxh3(std::string_view text);

// XXH3-64, seed 0, of bytes that come in parts: the value after Update(a), Update(b) is Xxh3 of a
// followed by b. Not thread-safe. It has no destructor, so it may be abandoned by longjmp.
class Xxh3Stream {
 public:
  Xxh3Stream() { Reset(); }
  void Reset();
  void Update(std::span<const std::byte> bytes);
  uint64_t Value() const;

 private:
  alignas(64) std::byte state_[576];
};

// Longer tensors are hashed in blocks of this size.
inline constexpr uint64_t kDigestBlockBytes = uint64_t{1} << 20;

// Digest of a tensor from its blocks' digests, at least one (an empty tensor has one block of no
// bytes). If there is one block, its digest is the tensor's.
uint64_t CombineBlockDigests(std::span<const uint64_t> blocks);

// Digest of a tensor that lies in one piece of memory.
uint64_t TensorDigest(std::span<const std::byte> bytes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_DIGEST_H_

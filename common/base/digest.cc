#include "common/base/digest.h"

#include <algorithm>

namespace ckptd {
namespace internal {
uint64_t Xxh3_sse2(const void* data, size_t bytes);
uint64_t Xxh3_avx2(const void* data, size_t bytes);
uint64_t Xxh3_avx512(const void* data, size_t bytes);
}  // namespace internal

namespace {

using Kernel = uint64_t (*)(const void*, size_t);

Kernel PickKernel() {
  if (__builtin_cpu_supports("avx512f")) return internal::Xxh3_avx512;
  if (__builtin_cpu_supports("avx2")) return internal::Xxh3_avx2;
  return internal::Xxh3_sse2;
}

}  // namespace

uint64_t Xxh3(std::span<const std::byte> bytes) {
  static const Kernel kernel = PickKernel();
  return kernel(bytes.data(), bytes.size());
}

uint64_t Xxh3(std::string_view text) { return Xxh3(std::as_bytes(std::span(text))); }

uint64_t CombineBlockDigests(std::span<const uint64_t> blocks) {
  if (blocks.size() == 1) return blocks[0];
  return Xxh3(std::as_bytes(blocks));  // little-endian hosts only, as the formats
}

uint64_t TensorDigest(std::span<const std::byte> bytes) {
  std::vector<uint64_t> blocks;
  do {
    const size_t n = std::min<size_t>(bytes.size(), kDigestBlockBytes);
    blocks.push_back(Xxh3(bytes.first(n)));
    bytes = bytes.subspan(n);
  } while (!bytes.empty());
  return CombineBlockDigests(blocks);
}

}  // namespace ckptd

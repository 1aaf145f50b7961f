#include "common/base/digest.h"

#include <algorithm>

namespace ckptd {
namespace internal {
#define CKPTD_DECLARE_XXH3(name)                                     \
  uint64_t name(const void* data, size_t bytes);                     \
  void name##_reset(void* state);                                    \
  void name##_update(void* state, const void* data, size_t bytes);   \
  uint64_t name##_value(const void* state)

CKPTD_DECLARE_XXH3(Xxh3_sse2);
CKPTD_DECLARE_XXH3(Xxh3_avx2);
CKPTD_DECLARE_XXH3(Xxh3_avx512);
#undef CKPTD_DECLARE_XXH3
}  // namespace internal

namespace {

struct Kernel {
  uint64_t (*hash)(const void*, size_t);
  void (*reset)(void*);
  void (*update)(void*, const void*, size_t);
  uint64_t (*value)(const void*);
};

#define CKPTD_XXH3_KERNEL(name) \
  Kernel { internal::name, internal::name##_reset, internal::name##_update, internal::name##_value }

Kernel PickKernel() {
  if (__builtin_cpu_supports("avx512f")) return CKPTD_XXH3_KERNEL(Xxh3_avx512);
  if (__builtin_cpu_supports("avx2")) return CKPTD_XXH3_KERNEL(Xxh3_avx2);
  return CKPTD_XXH3_KERNEL(Xxh3_sse2);
}

#undef CKPTD_XXH3_KERNEL

const Kernel& TheKernel() {
  static const Kernel kernel = PickKernel();
  return kernel;
}

}  // namespace

uint64_t Xxh3(std::span<const std::byte> bytes) {
  return TheKernel().hash(bytes.data(), bytes.size());
}

void Xxh3Stream::Reset() { TheKernel().reset(state_); }

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  TheKernel().update(state_, bytes.data(), bytes.size());
}

uint64_t Xxh3Stream::Value() const { return TheKernel().value(state_); }

uint64_t Xxh3(std::string_view text) { return Xxh3(std::as_bytes(std::span(text))); }

uint64_t CombineBlockDigests(std::span<const uint64_t> blocks) {
  if (blocks.size() == 1) return blocks[0];
  return Xxh3(std::as_bytes(blocks));  // only on little-endian hosts, like the formats
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

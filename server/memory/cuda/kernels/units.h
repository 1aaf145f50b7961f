// Units as they lie in memory, and how a thread loads and stores one. For GPUs and the host.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_UNITS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_UNITS_H_

#include <cstdint>
#include <cstring>

#include "server/memory/cuda/kernels/index.h"

namespace ckptd::kernels {

struct alignas(16) Bytes16 {
  uint64_t low;
  uint64_t high;
};

template <uint32_t kBytes>
struct RawOf;
template <>
struct RawOf<1> {
  using Type = uint8_t;
};
template <>
struct RawOf<2> {
  using Type = uint16_t;
};
template <>
struct RawOf<4> {
  using Type = uint32_t;
};
template <>
struct RawOf<8> {
  using Type = uint64_t;
};
template <>
struct RawOf<16> {
  using Type = Bytes16;
};

// A misaligned access faults on a GPU, so it must fail here as well.
template <typename Raw>
inline void TrapUnlessAligned(uint64_t address) {
  if (address % sizeof(Raw) != 0) __builtin_trap();
}

// Addresses become pointers only here. On a GPU: global memory, with a hint that it is not needed
// again soon.
template <typename Raw>
CKPTD_HOST_DEVICE inline Raw Load(uint64_t address) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Raw) == 16) {
    const ulonglong2 both = __ldcs(reinterpret_cast<const ulonglong2*>(address));
    return {both.x, both.y};
  } else {
    return __ldcs(reinterpret_cast<const Raw*>(address));
  }
#else
  TrapUnlessAligned<Raw>(address);
  Raw raw;
  std::memcpy(&raw, reinterpret_cast<const void*>(address), sizeof raw);
  return raw;
#endif
}

template <typename Raw>
CKPTD_HOST_DEVICE inline void Store(uint64_t address, Raw raw) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Raw) == 16) {
    __stcs(reinterpret_cast<ulonglong2*>(address), make_ulonglong2(raw.low, raw.high));
  } else {
    __stcs(reinterpret_cast<Raw*>(address), raw);
  }
#else
  TrapUnlessAligned<Raw>(address);
  std::memcpy(reinterpret_cast<void*>(address), &raw, sizeof raw);
#endif
}

// A unit whose address is a multiple of its size.
template <typename Raw>
struct Aligned {
  using Loaded = Raw;
  CKPTD_HOST_DEVICE static Loaded LoadAt(uint64_t address) { return Load<Raw>(address); }
  CKPTD_HOST_DEVICE static Raw UnitOf(const Loaded& loaded) { return loaded; }
};

// The word that begins `bits` < 64 within two words that follow each other in memory.
CKPTD_HOST_DEVICE inline uint64_t Funnel(uint64_t word, uint64_t next, uint32_t bits) {
  return (word >> bits) | ((next << 1) << (63 - bits));
}

// A unit at any address. Loads the two aligned units that it spans; the next unit of a run mostly
// needs the second one too, and finds it in the cache. Both hold a byte of the unit, so no other
// page is touched. If the unit is aligned, both are the same.
template <typename Raw>
struct Unaligned {
  struct Loaded {
    Raw first;
    Raw second;
    uint32_t skew;  // bytes of `first` before the unit
  };
  CKPTD_HOST_DEVICE static Loaded LoadAt(uint64_t address) {
    constexpr uint64_t kStraight = ~uint64_t{sizeof(Raw) - 1};
    return {Load<Raw>(address & kStraight), Load<Raw>((address + sizeof(Raw) - 1) & kStraight),
            static_cast<uint32_t>(address % sizeof(Raw))};
  }
  CKPTD_HOST_DEVICE static Raw UnitOf(const Loaded& loaded) {
    const uint32_t bits = loaded.skew % 8 * 8;
    if constexpr (sizeof(Raw) == 16) {
      const bool far = loaded.skew >= 8;
      const uint64_t middle = far ? loaded.second.low : loaded.first.high;
      return {Funnel(far ? loaded.first.high : loaded.first.low, middle, bits),
              Funnel(middle, far ? loaded.second.high : loaded.second.low, bits)};
    } else if constexpr (sizeof(Raw) == 8) {
      return Funnel(loaded.first, loaded.second, bits);
    } else {
      const uint64_t both = loaded.first | static_cast<uint64_t>(loaded.second) << sizeof(Raw) * 8;
      return static_cast<Raw>(both >> bits);
    }
  }
};

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_UNITS_H_

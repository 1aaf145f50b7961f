// How units are copied, and what one thread does with a tile. For GPUs and the host.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_COPY_WAYS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_COPY_WAYS_H_

#include <cstdint>
#include <cstring>

#include "server/memory/cuda/kernels/element_cast.h"
#include "server/memory/cuda/kernels/index.h"

namespace ckptd::kernels {

// CopyTask::way: 0 to 4 for bytes as they are, in units of 1 << way; from kFirstCast on,
// casts. Both sides of a unit are aligned to their size.
inline constexpr uint32_t kFirstCast = 8;
inline constexpr uint32_t kWays = kFirstCast + kFloats * kFloats * 4;

// What is a unit of a cast.
enum class Elements : uint32_t {
  kAstray,  // one, whose source lies at any address
  kSingle,
  kWide,    // WideElements of them
  kWidest,  // twice as many
};

CKPTD_HOST_DEVICE constexpr uint32_t CastWay(Float from, Float to, Elements elements) {
  return kFirstCast + (static_cast<uint32_t>(from) * kFloats + static_cast<uint32_t>(to)) * 4 +
         static_cast<uint32_t>(elements);
}

// Elements of a wide unit: 8 bytes on the wider side, so that tensors which begin at
// any multiple of 8 in their file, as is usual, qualify. Twice that is what memory likes best.
CKPTD_HOST_DEVICE constexpr uint32_t WideElements(Float from, Float to) {
  return 8 / (SizeOf(from) > SizeOf(to) ? SizeOf(from) : SizeOf(to));
}

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

// A GPU faults where the processor does not.
template <typename Raw>
inline void TrapUnlessAligned(uint64_t address) {
  if (address % sizeof(Raw) != 0) __builtin_trap();
}

// Addresses become pointers here alone. On a GPU: global memory, not needed again soon.
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

// Ways as types, in agreement with ShapeOf. A thread loads all its units of a tile before
// it stores the first one, to hide the latency of memory.
template <uint32_t kBytes>
struct Verbatim {
  using From = typename RawOf<kBytes>::Type;
  using To = From;
  static constexpr uint32_t kPerThread = kBytes == 16 ? kWidestPerThread : kMaxPerThread;
  CKPTD_HOST_DEVICE static From LoadUnit(uint64_t address) { return Load<From>(address); }
  CKPTD_HOST_DEVICE static To Convert(From from) { return from; }
};

// kAlignment: of the source's units.
template <Float kFrom, Float kTo, uint32_t kElements, uint32_t kAlignment>
struct Casting {
  using From = typename RawOf<kElements * SizeOf(kFrom)>::Type;
  using To = typename RawOf<kElements * SizeOf(kTo)>::Type;
  // Rare and slow anyhow: no need to make much code of it.
  static constexpr uint32_t kPerThread = kAlignment == sizeof(From) ? kMaxPerThread : 2;
  CKPTD_HOST_DEVICE static From LoadUnit(uint64_t address) {
    if constexpr (kAlignment == sizeof(From)) return Load<From>(address);
    uint64_t from = 0;
    for (uint32_t i = 0; i < sizeof(From); ++i) {
      from |= static_cast<uint64_t>(Load<uint8_t>(address + i)) << (i * 8);
    }
    return static_cast<From>(from);
  }
  CKPTD_HOST_DEVICE static To Convert(From from) {
    To to = 0;
    for (uint32_t i = 0; i < kElements; ++i) {
      const auto element = static_cast<Bits<kFrom>>(from >> (i * SizeOf(kFrom) * 8));
      const To cast = static_cast<To>(CastElement<kFrom, kTo>(element));
      to = static_cast<To>(to | static_cast<To>(cast << (i * SizeOf(kTo) * 8)));
    }
    return to;
  }
};

// Two wide units in one.
template <Float kFrom, Float kTo>
struct CastingPairs {
  static constexpr uint32_t kElements = WideElements(kFrom, kTo);
  using Wide = Casting<kFrom, kTo, kElements, kElements * SizeOf(kFrom)>;
  using From = typename RawOf<2 * sizeof(typename Wide::From)>::Type;
  using To = typename RawOf<2 * sizeof(typename Wide::To)>::Type;
  // So much is under way at a time that memory is kept busy.
  static constexpr uint32_t kPerThread = sizeof(From) == 16 ? kWidestPerThread : kMaxPerThread;
  template <typename Unit>
  struct Pair {
    Unit first;
    Unit second;
  };
  CKPTD_HOST_DEVICE static From LoadUnit(uint64_t address) { return Load<From>(address); }
  CKPTD_HOST_DEVICE static To Convert(From from) {
    const auto two = SameBits<Pair<typename Wide::From>>(from);
    return SameBits<To>(
        Pair<typename Wide::To>{Wide::Convert(two.first), Wide::Convert(two.second)});
  }
};

// Bytes of a unit and how many a thread takes; `way` is a valid one.
CKPTD_HOST_DEVICE inline UnitShape ShapeOf(uint32_t way) {
  if (way < kFirstCast) {
    return {1u << way, 1u << way, way == 4 ? kWidestPerThread : kMaxPerThread};
  }
  const uint32_t pair = (way - kFirstCast) / 4;
  const auto from = static_cast<Float>(pair / kFloats);
  const auto to = static_cast<Float>(pair % kFloats);
  const auto unit = static_cast<Elements>((way - kFirstCast) % 4);
  const uint32_t wide = WideElements(from, to);
  const uint32_t elements = unit == Elements::kWidest ? 2 * wide : unit == Elements::kWide ? wide : 1;
  const uint32_t bytes = elements * SizeOf(from);
  return {bytes, elements * SizeOf(to),
          bytes == 16                 ? kWidestPerThread
          : unit == Elements::kAstray ? 2u
                                      : kMaxPerThread};
}

// Calls `visit` with the way as a type: visit(Verbatim<4>()). Nothing for an unknown one.
template <typename Visit>
CKPTD_HOST_DEVICE inline void VisitVerbatim(uint32_t way, const Visit& visit) {
  switch (way) {
    case 0:
      return visit(Verbatim<1>());
    case 1:
      return visit(Verbatim<2>());
    case 2:
      return visit(Verbatim<4>());
    case 3:
      return visit(Verbatim<8>());
    case 4:
      return visit(Verbatim<16>());
    default:
      return;
  }
}

template <Float kFrom, Float kTo, typename Visit>
CKPTD_HOST_DEVICE inline void VisitElements(Elements elements, const Visit& visit) {
  constexpr uint32_t kWide = WideElements(kFrom, kTo);
  switch (elements) {
    case Elements::kAstray:
      return visit(Casting<kFrom, kTo, 1, 1>());
    case Elements::kSingle:
      return visit(Casting<kFrom, kTo, 1, SizeOf(kFrom)>());
    case Elements::kWide:
      return visit(Casting<kFrom, kTo, kWide, kWide * SizeOf(kFrom)>());
    case Elements::kWidest:
      return visit(CastingPairs<kFrom, kTo>());
  }
}

template <Float kFrom, typename Visit>
CKPTD_HOST_DEVICE inline void VisitCastFrom(uint32_t to, Elements elements, const Visit& visit) {
  switch (static_cast<Float>(to)) {
    case Float::kF16:
      if constexpr (kFrom != Float::kF16) VisitElements<kFrom, Float::kF16>(elements, visit);
      return;
    case Float::kBF16:
      if constexpr (kFrom != Float::kBF16) VisitElements<kFrom, Float::kBF16>(elements, visit);
      return;
    case Float::kF32:
      if constexpr (kFrom != Float::kF32) VisitElements<kFrom, Float::kF32>(elements, visit);
      return;
    case Float::kF64:
      if constexpr (kFrom != Float::kF64) VisitElements<kFrom, Float::kF64>(elements, visit);
      return;
  }
}

template <typename Visit>
CKPTD_HOST_DEVICE inline void VisitCast(uint32_t way, const Visit& visit) {
  if (way < kFirstCast || way >= kWays) return;
  const uint32_t pair = (way - kFirstCast) / 4;
  const auto elements = static_cast<Elements>((way - kFirstCast) % 4);
  switch (static_cast<Float>(pair / kFloats)) {
    case Float::kF16:
      return VisitCastFrom<Float::kF16>(pair % kFloats, elements, visit);
    case Float::kBF16:
      return VisitCastFrom<Float::kBF16>(pair % kFloats, elements, visit);
    case Float::kF32:
      return VisitCastFrom<Float::kF32>(pair % kFloats, elements, visit);
    case Float::kF64:
      return VisitCastFrom<Float::kF64>(pair % kFloats, elements, visit);
  }
}

template <typename Visit>
CKPTD_HOST_DEVICE inline void VisitWay(uint32_t way, const Visit& visit) {
  if (way < kFirstCast) return VisitVerbatim(way, visit);
  VisitCast(way, visit);
}

// Copies what one thread takes of a tile: units thread, thread + kThreads, ...
struct CopyUnits {
  const Place* places;
  uint32_t thread;
  uint32_t units;  // of the tile

  template <typename Way>
  CKPTD_HOST_DEVICE void operator()(Way) const {
    typename Way::From loaded[Way::kPerThread] = {};
    CKPTD_UNROLL
    for (uint32_t i = 0; i < Way::kPerThread; ++i) {
      if (thread + i * kThreads < units) {
        loaded[i] = Way::LoadUnit(places[i].source);
      }
    }
    CKPTD_UNROLL
    for (uint32_t i = 0; i < Way::kPerThread; ++i) {
      if (thread + i * kThreads < units) Store(places[i].target, Way::Convert(loaded[i]));
    }
  }
};

// Where the units lie that thread `thread` < kThreads takes of a tile: once per kernel,
// outside the switch over ways, which would repeat it.
CKPTD_HOST_DEVICE inline void FindPlaces(const CopyTask& task, const Tile& tile, uint32_t thread,
                                         Place (&places)[kMaxPerThread]) {
  CKPTD_UNROLL
  for (uint32_t i = 0; i < kMaxPerThread; ++i) {
    const uint32_t k = thread + i * kThreads;
    if (k < tile.units) places[i] = PlaceOf(task, tile, k);
  }
}

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_COPY_WAYS_H_

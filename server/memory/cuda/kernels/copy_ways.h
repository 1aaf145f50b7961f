// The ways in which units are copied, and what one thread does with a tile. A way is a number that
// says how long a unit is, whether its source is aligned, and what it is cast to. Used on GPUs and
// on the host.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_COPY_WAYS_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_COPY_WAYS_H_

#include <cstdint>
#include <type_traits>

#include "server/memory/cuda/kernels/element_cast.h"
#include "server/memory/cuda/kernels/index.h"
#include "server/memory/cuda/kernels/units.h"

namespace ckptd::kernels {

// Values of CopyTask::way. 0 to 4: uncast units of 1 << way bytes. 5 to 7: uncast units of 4, 8
// and 16 bytes whose sources are unaligned. From kFirstCast on: casts. Targets of units are
// aligned to their size, and so are sources that are not called unaligned.
inline constexpr uint32_t kFirstUnaligned = 5;
inline constexpr uint32_t kFirstCast = 8;

// How many elements a unit of a cast has.
enum class Elements : uint32_t {
  kUnaligned,  // one
  kSingle,
  kWide,    // WideElements of them
  kWidest,  // twice as many
  kWidestUnaligned,
};
inline constexpr uint32_t kElements = 5;
inline constexpr uint32_t kWays = kFirstCast + kFloats * kFloats * kElements;

// Units of 1 << log bytes. `log` is at least 2 if the source is unaligned.
CKPTD_HOST_DEVICE constexpr uint32_t VerbatimWay(uint32_t log, bool unaligned) {
  return unaligned ? kFirstUnaligned + log - 2 : log;
}

CKPTD_HOST_DEVICE constexpr uint32_t CastWay(Float from, Float to, Elements elements) {
  const uint32_t pair = static_cast<uint32_t>(from) * kFloats + static_cast<uint32_t>(to);
  return kFirstCast + pair * kElements + static_cast<uint32_t>(elements);
}

// Elements of a wide unit: 8 bytes on the wider side, so that tensors at any multiple of 8 in
// their file, which is usual, qualify. Twice that is fastest.
CKPTD_HOST_DEVICE constexpr uint32_t WideElements(Float from, Float to) {
  return 8 / (SizeOf(from) > SizeOf(to) ? SizeOf(from) : SizeOf(to));
}

// Units that a thread takes of a tile: enough bytes in flight to keep memory busy. Unaligned
// sources need two loads per unit, so they take half as many: more would take registers from all
// other ways.
CKPTD_HOST_DEVICE constexpr uint32_t PerThread(uint32_t bytes, bool unaligned) {
  return (bytes == 16 ? kWidestPerThread : kMaxPerThread) / (unaligned ? 2 : 1);
}

// The ways as types; they agree with ShapeOf. A thread loads all its units of a tile before it
// stores the first one, to hide the latency of memory.
template <typename From, bool kUnaligned>
using SourceOf = std::conditional_t<kUnaligned, Unaligned<From>, Aligned<From>>;

template <uint32_t kBytes, bool kUnaligned = false>
struct Verbatim {
  using From = typename RawOf<kBytes>::Type;
  using To = From;
  using Source = SourceOf<From, kUnaligned>;
  static constexpr uint32_t kPerThread = PerThread(kBytes, kUnaligned);
  CKPTD_HOST_DEVICE static To Convert(From from) { return from; }
};

template <Float kFrom, Float kTo, uint32_t kCount, bool kUnaligned = false>
struct Casting {
  using From = typename RawOf<kCount * SizeOf(kFrom)>::Type;
  using To = typename RawOf<kCount * SizeOf(kTo)>::Type;
  using Source = SourceOf<From, kUnaligned>;
  static constexpr uint32_t kPerThread = PerThread(sizeof(From), kUnaligned);
  CKPTD_HOST_DEVICE static To Convert(From from) {
    To to = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      const auto element = static_cast<Bits<kFrom>>(from >> (i * SizeOf(kFrom) * 8));
      const To cast = static_cast<To>(CastElement<kFrom, kTo>(element));
      to = static_cast<To>(to | static_cast<To>(cast << (i * SizeOf(kTo) * 8)));
    }
    return to;
  }
};

// Two wide units as one.
template <Float kFrom, Float kTo, bool kUnaligned>
struct CastingPairs {
  using Wide = Casting<kFrom, kTo, WideElements(kFrom, kTo)>;
  using From = typename RawOf<2 * sizeof(typename Wide::From)>::Type;
  using To = typename RawOf<2 * sizeof(typename Wide::To)>::Type;
  using Source = SourceOf<From, kUnaligned>;
  static constexpr uint32_t kPerThread = PerThread(sizeof(From), kUnaligned);
  template <typename Unit>
  struct Pair {
    Unit first;
    Unit second;
  };
  CKPTD_HOST_DEVICE static To Convert(From from) {
    const auto two = SameBits<Pair<typename Wide::From>>(from);
    return SameBits<To>(
        Pair<typename Wide::To>{Wide::Convert(two.first), Wide::Convert(two.second)});
  }
};

// The unit's bytes, and how many units a thread takes. `way` must be valid.
CKPTD_HOST_DEVICE inline UnitShape ShapeOf(uint32_t way) {
  if (way < kFirstCast) {
    const bool unaligned = way >= kFirstUnaligned;
    const uint32_t bytes = 1u << (unaligned ? way - kFirstUnaligned + 2 : way);
    return {bytes, bytes, PerThread(bytes, unaligned)};
  }
  const uint32_t pair = (way - kFirstCast) / kElements;
  const auto from = static_cast<Float>(pair / kFloats);
  const auto to = static_cast<Float>(pair % kFloats);
  const auto unit = static_cast<Elements>((way - kFirstCast) % kElements);
  const bool unaligned = unit == Elements::kUnaligned || unit == Elements::kWidestUnaligned;
  const uint32_t wide = WideElements(from, to);
  const uint32_t elements = unit >= Elements::kWidest ? 2 * wide
                            : unit == Elements::kWide ? wide
                                                      : 1;
  const uint32_t bytes = elements * SizeOf(from);
  return {bytes, elements * SizeOf(to), PerThread(bytes, unaligned)};
}

// Calls `visit` with the way as a type: visit(Verbatim<4>()). Does nothing for an unknown way.
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
    case VerbatimWay(2, true):
      return visit(Verbatim<4, true>());
    case VerbatimWay(3, true):
      return visit(Verbatim<8, true>());
    case VerbatimWay(4, true):
      return visit(Verbatim<16, true>());
    default:
      return;
  }
}

template <Float kFrom, Float kTo, typename Visit>
CKPTD_HOST_DEVICE inline void VisitElements(Elements elements, const Visit& visit) {
  switch (elements) {
    case Elements::kUnaligned:
      return visit(Casting<kFrom, kTo, 1, true>());
    case Elements::kSingle:
      return visit(Casting<kFrom, kTo, 1>());
    case Elements::kWide:
      return visit(Casting<kFrom, kTo, WideElements(kFrom, kTo)>());
    case Elements::kWidest:
      return visit(CastingPairs<kFrom, kTo, false>());
    case Elements::kWidestUnaligned:
      return visit(CastingPairs<kFrom, kTo, true>());
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
  const uint32_t pair = (way - kFirstCast) / kElements;
  const auto elements = static_cast<Elements>((way - kFirstCast) % kElements);
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
    using Source = typename Way::Source;
    typename Source::Loaded loaded[Way::kPerThread] = {};
    CKPTD_UNROLL
    for (uint32_t i = 0; i < Way::kPerThread; ++i) {
      if (thread + i * kThreads < units) {
        loaded[i] = Source::LoadAt(places[i].source);
      }
    }
    CKPTD_UNROLL
    for (uint32_t i = 0; i < Way::kPerThread; ++i) {
      if (thread + i * kThreads < units) {
        Store(places[i].target, Way::Convert(Source::UnitOf(loaded[i])));
      }
    }
  }
};

// Finds the units of a tile that thread `thread` < kThreads takes. Each kernel calls this once,
// outside the switch over ways, because the switch would repeat the code.
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

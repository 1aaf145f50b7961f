// Element types of tensors, as the safetensors header names them where it has them.
#ifndef CKPTD_COMMON_SOURCE_DTYPE_H_
#define CKPTD_COMMON_SOURCE_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace ckptd {

// Values equal ckptd.v1.Dtype; 0 means "not stated". Up to kU64 their order is that of the safetensors
// library (the writer's alignment order); behind it come types that torch alone has.
enum class Dtype : uint8_t {
  kUnspecified = 0,
  kBool, kF4, kF6E2M3, kF6E3M2, kU8, kI8, kF8E5M2, kF8E4M3, kF8E8M0, kF8E4M3Fnuz,
  kF8E5M2Fnuz, kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kC64, kF64, kI64, kU64,
  kC32, kC128, kBits8, kBits16,
};
inline constexpr int kDtypeCount = 27;  // kUnspecified included

// Bits of one element; 0 for kUnspecified.
uint32_t BitsOf(Dtype dtype);

// "F32", "BF16", ...; "UNSPECIFIED" for kUnspecified.
std::string_view NameOf(Dtype dtype);

// The opposite; nullopt when unknown.
std::optional<Dtype> ParseDtype(std::string_view name);

// Whether the safetensors library has it.
constexpr bool IsOfSafetensors(Dtype dtype) {
  return dtype != Dtype::kUnspecified && dtype <= Dtype::kU64;
}

bool IsComplex(Dtype dtype);

// Castable and complex ones: numbers whose highest bit is their sign, alone or in pairs.
bool HasSigns(Dtype dtype);

// F16, BF16, F32 and F64: the types a load can cast between.
bool IsCastable(Dtype dtype);

// Bytes whose order is turned round between machines of either byte order: those of an element, of
// a complex one those of each of its two numbers. 1 where there is nothing to turn round.
uint32_t NumberBytesOf(Dtype dtype);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_DTYPE_H_

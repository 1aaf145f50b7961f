#include "common/cast/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace ckptd {
namespace {

using internal::CastKernel;

struct Format {
  int fraction;  // stored mantissa bits
  int exponent;  // exponent bits
  int bias() const { return (1 << (exponent - 1)) - 1; }
};

Format FormatOf(Dtype dtype) {
  if (dtype == Dtype::kF16) return {10, 5};
  if (dtype == Dtype::kBF16) return {7, 8};
  if (dtype == Dtype::kF32) return {23, 8};
  return {52, 11};
}

uint64_t SignOf(uint64_t bits, Format f) { return bits >> (f.fraction + f.exponent) & 1; }
uint64_t FractionOf(uint64_t bits, Format f) { return bits & ((uint64_t{1} << f.fraction) - 1); }
uint64_t ExponentOf(uint64_t bits, Format f) {
  return bits >> f.fraction & ((uint64_t{1} << f.exponent) - 1);
}
bool IsSpecial(uint64_t bits, Format f) {
  return ExponentOf(bits, f) == (uint64_t{1} << f.exponent) - 1;
}
bool IsNan(uint64_t bits, Format f) { return IsSpecial(bits, f) && FractionOf(bits, f) != 0; }

// Value of finite bits, by definition. long double holds every one exactly.
long double Value(uint64_t bits, Format f) {
  const auto e = static_cast<int>(ExponentOf(bits, f));
  const auto m = static_cast<long double>(FractionOf(bits, f));
  const long double magnitude =
      e == 0 ? std::ldexp(m, 1 - f.bias() - f.fraction)
             : std::ldexp(m + std::ldexp(1.0L, f.fraction), e - f.bias() - f.fraction);
  return SignOf(bits, f) != 0 ? -magnitude : magnitude;
}

// Slow and by definition: scale to units in the last place, round to even.
uint64_t Encode(long double value, Format f) {
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (f.fraction + f.exponent) : 0;
  const long double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - f.bias());
  const long double units = std::nearbyint(std::ldexp(magnitude, f.fraction - exponent));
  const auto infinity = ((uint64_t{1} << f.exponent) - 1) << f.fraction;
  // Rounding up into the next binade carries into the exponent by itself.
  const uint64_t hidden = uint64_t{1} << f.fraction;
  const auto whole = static_cast<uint64_t>(units);
  if (whole < hidden) return sign | whole;
  const uint64_t bits = (static_cast<uint64_t>(exponent + f.bias()) << f.fraction) + whole - hidden;
  return sign | std::min(bits, infinity);
}

uint64_t NanBits(uint64_t bits, Format from, Dtype to_dtype) {
  if (to_dtype == Dtype::kBF16) return 0x7fc0;
  const Format to = FormatOf(to_dtype);
  const int shift = to.fraction - from.fraction;
  const uint64_t payload =
      shift >= 0 ? FractionOf(bits, from) << shift : FractionOf(bits, from) >> -shift;
  return SignOf(bits, from) << (to.fraction + to.exponent) |
         ((uint64_t{1} << to.exponent) - 1) << to.fraction | uint64_t{1} << (to.fraction - 1) |
         payload;
}

uint64_t Reference(uint64_t bits, Dtype from_dtype, Dtype to_dtype) {
  const Format from = FormatOf(from_dtype);
  const Format to = FormatOf(to_dtype);
  if (from_dtype == Dtype::kBF16 && to_dtype == Dtype::kF32) return bits << 16;
  if (IsNan(bits, from)) return NanBits(bits, from, to_dtype);
  if (IsSpecial(bits, from)) {
    return SignOf(bits, from) << (to.fraction + to.exponent) | ((uint64_t{1} << to.exponent) - 1)
                                                                   << to.fraction;
  }
  const bool by_way_of_f32 = from_dtype == Dtype::kF64 && to.fraction < 23;
  if (!by_way_of_f32) return Encode(Value(bits, from), to);
  return Reference(Reference(bits, from_dtype, Dtype::kF32), Dtype::kF32, to_dtype);
}

std::vector<std::byte> Pack(const std::vector<uint64_t>& values, size_t size) {
  std::vector<std::byte> out(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) std::memcpy(&out[i * size], &values[i], size);
  return out;
}

struct Kernel {
  std::string name;
  CastKernel cast;
};

std::vector<Kernel> Kernels() {
  std::vector<Kernel> kernels = {{"sse2", internal::CastKernelSse2()}};
  if (auto* k = internal::CastKernelAvx2()) kernels.push_back({"avx2", k});
  if (auto* k = internal::CastKernelAvx512()) kernels.push_back({"avx512", k});
  return kernels;
}

void ExpectReference(const std::vector<uint64_t>& inputs, Dtype from, Dtype to) {
  const size_t from_size = BitsOf(from) / 8;
  const size_t to_size = BitsOf(to) / 8;
  const std::vector<std::byte> in = Pack(inputs, from_size);
  for (const Kernel& kernel : Kernels()) {
    std::vector<std::byte> out(inputs.size() * to_size);
    kernel.cast(from, to, in.data(), out.data(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      uint64_t got = 0;
      std::memcpy(&got, &out[i * to_size], to_size);
      ASSERT_EQ(got, Reference(inputs[i], from, to))
          << kernel.name << " " << NameOf(from) << " to " << NameOf(to) << " of 0x" << std::hex
          << inputs[i];
    }
  }
}

std::vector<uint64_t> AllOf16Bits() {
  std::vector<uint64_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

// Random bits, and the neighbours of every rounding boundary of narrow formats.
std::vector<uint64_t> Hard(Dtype dtype, size_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(dtype));
  const Format f = FormatOf(dtype);
  std::vector<uint64_t> values;
  while (values.size() < count) {
    uint64_t bits = random();
    if (dtype == Dtype::kF32) bits &= 0xffffffffu;
    values.push_back(bits);
    // Exponents in the range of F16, with trailing zeros so that ties are common.
    const auto exponent = static_cast<uint64_t>(f.bias() - 28) + random() % 48;
    const uint64_t zeros = random() % static_cast<uint64_t>(f.fraction);
    const uint64_t fraction = FractionOf(bits, f) >> zeros << zeros;
    const uint64_t near = (SignOf(bits, f) << f.exponent | exponent) << f.fraction | fraction;
    values.push_back(near);
    values.push_back(near + random() % 3 - 1);
  }
  return values;
}

TEST(Cast, RoundsEveryF16AsTheReferenceDoes) {
  for (const Dtype to : {Dtype::kBF16, Dtype::kF32, Dtype::kF64}) {
    ExpectReference(AllOf16Bits(), Dtype::kF16, to);
  }
}

TEST(Cast, RoundsEveryBf16AsTheReferenceDoes) {
  for (const Dtype to : {Dtype::kF16, Dtype::kF32, Dtype::kF64}) {
    ExpectReference(AllOf16Bits(), Dtype::kBF16, to);
  }
}

TEST(Cast, RoundsMillionsOfF32AsTheReferenceDoes) {
  for (const Dtype to : {Dtype::kF16, Dtype::kBF16, Dtype::kF64}) {
    ExpectReference(Hard(Dtype::kF32, 1000000), Dtype::kF32, to);
  }
}

TEST(Cast, RoundsMillionsOfF64AsTheReferenceDoes) {
  for (const Dtype to : {Dtype::kF16, Dtype::kBF16, Dtype::kF32}) {
    ExpectReference(Hard(Dtype::kF64, 1000000), Dtype::kF64, to);
  }
}

TEST(Cast, GivesTheSameBitsAtAnyLengthAndAlignment) {
  const std::vector<std::byte> in = Pack(Hard(Dtype::kF32, 100), 4);
  std::vector<std::byte> whole(2 * 64);
  Cast(Dtype::kF32, Dtype::kBF16, in.data(), whole.data(), 64);
  for (size_t count = 0; count < 64; ++count) {
    std::vector<std::byte> shifted(in.begin(), in.end());
    shifted.insert(shifted.begin(), std::byte{0});
    std::vector<std::byte> out(2 * 64 + 1, std::byte{0x5a});
    Cast(Dtype::kF32, Dtype::kBF16, shifted.data() + 1, out.data() + 1, count);
    ASSERT_EQ(std::memcmp(out.data() + 1, whole.data(), 2 * count), 0) << count;
    ASSERT_EQ(out[1 + 2 * count > 128 ? 0 : 1 + 2 * count], std::byte{0x5a}) << count;
  }
}

TEST(Cast, LeavesBitsAloneWhenTheTypesAreEqual) {
  const std::vector<std::byte> in = Pack({0x7f800001, 0xffc12345, 0x80000000}, 4);
  std::vector<std::byte> out(in.size());
  Cast(Dtype::kF32, Dtype::kF32, in.data(), out.data(), 3);
  EXPECT_EQ(out, in);
}

}  // namespace
}  // namespace ckptd

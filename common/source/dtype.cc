#include "common/source/dtype.h"

#include <array>
#include <cstddef>

namespace ckptd {
namespace {

struct DtypeFacts {
  std::string_view name;
  uint32_t bits;
};

// Indexed by the enum's value.
constexpr std::array<DtypeFacts, kDtypeCount> kFacts = {{
    {"UNSPECIFIED", 0}, {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},
    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},
    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"C32", 32},    {"C128", 128},
    {"BITS8", 8},       {"BITS16", 16},
}};

const DtypeFacts& FactsOfDtype(Dtype dtype) {
  const auto i = static_cast<size_t>(dtype);
  return kFacts[i < kFacts.size() ? i : 0];
}

}  // namespace

uint32_t BitsOf(Dtype dtype) { return FactsOfDtype(dtype).bits; }

std::string_view NameOf(Dtype dtype) { return FactsOfDtype(dtype).name; }

std::optional<Dtype> ParseDtype(std::string_view name) {
  for (size_t i = 1; i < kFacts.size(); ++i) {
    if (kFacts[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

bool HasSigns(Dtype dtype) { return IsCastable(dtype) || IsComplex(dtype); }

bool IsCastable(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32 ||
         dtype == Dtype::kF64;
}

bool IsComplex(Dtype dtype) {
  return dtype == Dtype::kC32 || dtype == Dtype::kC64 || dtype == Dtype::kC128;
}

uint32_t NumberBytesOf(Dtype dtype) {
  const uint32_t bytes = BitsOf(dtype) / 8 / (IsComplex(dtype) ? 2 : 1);
  return bytes == 0 ? 1 : bytes;
}

}  // namespace ckptd

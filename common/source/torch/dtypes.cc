#include "common/source/torch/dtypes.h"

#include <algorithm>
#include <array>
#include <span>

namespace ckptd::torch {
namespace {

struct Named {
  std::string_view name;
  Dtype dtype;
};

// In front of "Storage".
constexpr auto kStorages = std::to_array<Named>({{"Untyped", Dtype::kU8},
                                                 {"Float", Dtype::kF32},
                                                 {"BFloat16", Dtype::kBF16},
                                                 {"Half", Dtype::kF16},
                                                 {"Double", Dtype::kF64},
                                                 {"Long", Dtype::kI64},
                                                 {"Int", Dtype::kI32},
                                                 {"Short", Dtype::kI16},
                                                 {"Char", Dtype::kI8},
                                                 {"Byte", Dtype::kU8},
                                                 {"Bool", Dtype::kBool},
                                                 {"ComplexFloat", Dtype::kC64},
                                                 {"ComplexDouble", Dtype::kC128}});

// Behind "torch.". Later names are other names of the same types.
constexpr auto kDtypes = std::to_array<Named>(
    {{"float32", Dtype::kF32},         {"bfloat16", Dtype::kBF16},
     {"float16", Dtype::kF16},         {"float64", Dtype::kF64},
     {"int64", Dtype::kI64},           {"int32", Dtype::kI32},
     {"int16", Dtype::kI16},           {"int8", Dtype::kI8},
     {"uint8", Dtype::kU8},            {"uint16", Dtype::kU16},
     {"uint32", Dtype::kU32},          {"uint64", Dtype::kU64},
     {"bool", Dtype::kBool},           {"complex32", Dtype::kC32},
     {"complex64", Dtype::kC64},       {"complex128", Dtype::kC128},
     {"float8_e4m3fn", Dtype::kF8E4M3}, {"float8_e5m2", Dtype::kF8E5M2},
     {"float8_e8m0fnu", Dtype::kF8E8M0}, {"float8_e4m3fnuz", Dtype::kF8E4M3Fnuz},
     {"float8_e5m2fnuz", Dtype::kF8E5M2Fnuz}, {"float4_e2m1fn_x2", Dtype::kF4},
     {"bits8", Dtype::kBits8},         {"bits16", Dtype::kBits16},
     {"float", Dtype::kF32},           {"half", Dtype::kF16},
     {"double", Dtype::kF64},          {"long", Dtype::kI64},
     {"int", Dtype::kI32},             {"short", Dtype::kI16},
     {"chalf", Dtype::kC32},           {"cfloat", Dtype::kC64},
     {"cdouble", Dtype::kC128}});

std::optional<Dtype> Find(std::span<const Named> table, std::string_view name) {
  const auto at = std::find_if(table.begin(), table.end(),
                               [name](const Named& row) { return row.name == name; });
  return at == table.end() ? std::nullopt : std::optional(at->dtype);
}

}  // namespace

std::optional<Dtype> DtypeOfStorage(std::string_view symbol) {
  constexpr std::string_view kStorage = "Storage";
  // The longest first.
  for (const std::string_view module : {"torch.storage.", "torch.cuda.", "torch."}) {
    if (!symbol.starts_with(module)) continue;
    symbol.remove_prefix(module.size());
    if (!symbol.ends_with(kStorage)) return std::nullopt;
    symbol.remove_suffix(kStorage.size());
    return Find(kStorages, symbol);
  }
  return std::nullopt;
}

std::optional<Dtype> DtypeOf(std::string_view symbol) {
  constexpr std::string_view kModule = "torch.";
  if (!symbol.starts_with(kModule)) return std::nullopt;
  return Find(kDtypes, symbol.substr(kModule.size()));
}

}  // namespace ckptd::torch

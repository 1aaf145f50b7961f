// ggml's types of tensors, as gguf's constants list them.
#include <fmt/format.h>

#include <map>
#include <string_view>

#include "common/source/formats/gguf/header.h"

namespace ckptd::gguf {

std::optional<Dtype> PlainDtype(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0:
      return Dtype::kF32;
    case 1:
      return Dtype::kF16;
    case 24:
      return Dtype::kI8;
    case 25:
      return Dtype::kI16;
    case 26:
      return Dtype::kI32;
    case 27:
      return Dtype::kI64;
    case 28:
      return Dtype::kF64;
    case 30:
      return Dtype::kBF16;
    default:
      return std::nullopt;
  }
}

std::string NameOfType(uint32_t ggml_type) {
  static const std::map<uint32_t, std::string_view> kNames = {
      {0, "F32"},      {1, "F16"},      {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},
      {7, "Q5_1"},     {8, "Q8_0"},     {9, "Q8_1"},     {10, "Q2_K"},   {11, "Q3_K"},
      {12, "Q4_K"},    {13, "Q5_K"},    {14, "Q6_K"},    {15, "Q8_K"},   {16, "IQ2_XXS"},
      {17, "IQ2_XS"},  {18, "IQ3_XXS"}, {19, "IQ1_S"},   {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},   {23, "IQ4_XS"},  {24, "I8"},      {25, "I16"},    {26, "I32"},
      {27, "I64"},     {28, "F64"},     {29, "IQ1_M"},   {30, "BF16"},   {34, "TQ1_0"},
      {35, "TQ2_0"},   {39, "MXFP4"}};
  const auto found = kNames.find(ggml_type);
  return found == kNames.end() ? fmt::format("type {}", ggml_type) : std::string(found->second);
}

}  // namespace ckptd::gguf

#include "common/source/pickle/numpy_scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace ckptd::pickle {
namespace {

template <typename Number>
Number NumberAt(std::string_view bytes) {
  Number number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

double HalfAt(std::string_view bytes) {
  const auto bits = NumberAt<uint16_t>(bytes);
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1f) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 0x400, exponent - 25);
}

double FloatAt(std::string_view bytes) {
  if (bytes.size() == 2) return HalfAt(bytes);
  return bytes.size() == 4 ? NumberAt<float>(bytes) : NumberAt<double>(bytes);
}

// The bytes lowest first, of complex numbers of each half.
std::string LittleEndian(std::string_view bytes, size_t number_bytes) {
  std::string swapped(bytes);
  for (size_t at = 0; at + number_bytes <= swapped.size(); at += number_bytes) {
    std::reverse(swapped.begin() + static_cast<std::ptrdiff_t>(at),
                 swapped.begin() + static_cast<std::ptrdiff_t>(at + number_bytes));
  }
  return swapped;
}

const Value* Signed(std::string_view bytes, Builder& builder) {
  switch (bytes.size()) {
    case 1:
      return builder.Int(NumberAt<int8_t>(bytes));
    case 2:
      return builder.Int(NumberAt<int16_t>(bytes));
    case 4:
      return builder.Int(NumberAt<int32_t>(bytes));
    default:
      return builder.Int(NumberAt<int64_t>(bytes));
  }
}

const Value* Unsigned(std::string_view bytes, Builder& builder) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  if (value >> 63 != 0) return builder.BigInt(std::to_string(value));
  return builder.Int(static_cast<int64_t>(value));
}

// Whether numpy has numbers of that letter and that many bytes.
bool IsNumberType(char letter, size_t bytes) {
  switch (letter) {
    case 'b':
      return bytes == 1;
    case 'i':
    case 'u':
      return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    case 'f':
      return bytes == 2 || bytes == 4 || bytes == 8;
    case 'c':
      return bytes == 8 || bytes == 16;
    default:
      return false;
  }
}

const Value* NumberOf(char letter, std::string_view bytes, Builder& builder) {
  switch (letter) {
    case 'b':
      return Builder::Bool(bytes[0] != 0);
    case 'i':
      return Signed(bytes, builder);
    case 'u':
      return Unsigned(bytes, builder);
    case 'f':
      return builder.Float(FloatAt(bytes));
    default: {
      const size_t half = bytes.size() / 2;
      return builder.Complex(FloatAt(bytes.substr(0, half)), FloatAt(bytes.substr(half)));
    }
  }
}

}  // namespace

const Value* NumpyScalar(Items arguments, Builder& builder) {
  if (arguments.size() != 2 || !arguments[0]->Calls("numpy.dtype")) return nullptr;
  const Value& dtype = *arguments[0];
  // Texts of Python 2 are bytes.
  if (!arguments[1]->is(Kind::kBytes) && !arguments[1]->is(Kind::kText)) return nullptr;
  std::string_view bytes = arguments[1]->text();
  if (dtype.items().empty() || !dtype.items()[0]->is(Kind::kText)) return nullptr;
  const std::string_view type = dtype.items()[0]->text();  // "f8"
  if (type.empty() || !IsNumberType(type[0], bytes.size()) ||
      type.substr(1) != std::to_string(bytes.size())) {
    return nullptr;
  }
  const Items state = dtype.state() == nullptr ? Items() : dtype.state()->items();
  std::string swapped;
  if (state.size() > 1 && state[1]->IsText(">")) {
    swapped = LittleEndian(bytes, type[0] == 'c' ? bytes.size() / 2 : bytes.size());
    bytes = swapped;
  }
  return NumberOf(type[0], bytes, builder);
}

}  // namespace ckptd::pickle

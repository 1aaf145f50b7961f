#include "common/source/pickle/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace ckptd::pickle {
namespace {

// A number by its base 2^32, lowest first.
using Limbs = std::vector<uint32_t>;

Limbs MagnitudeOf(std::string_view bytes, bool is_negative) {
  Limbs limbs((bytes.size() + 3) / 4, is_negative ? ~uint32_t{0} : 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t shift = i % 4 * 8;
    limbs[i / 4] &= ~(uint32_t{0xff} << shift);
    limbs[i / 4] |= uint32_t{static_cast<uint8_t>(bytes[i])} << shift;
  }
  if (!is_negative) return limbs;
  uint64_t carry = 1;
  for (uint32_t& limb : limbs) {
    carry += static_cast<uint32_t>(~limb);
    limb = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  if (carry != 0) limbs.push_back(1);
  return limbs;
}

// Divides by 10^9 and returns what remains.
uint32_t NineDigits(Limbs& limbs) {
  uint64_t rest = 0;
  for (size_t i = limbs.size(); i-- > 0;) {
    rest = (rest << 32) | limbs[i];
    limbs[i] = static_cast<uint32_t>(rest / 1'000'000'000);
    rest %= 1'000'000'000;
  }
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  return static_cast<uint32_t>(rest);
}

}  // namespace

std::string DigitsOf(std::string_view bytes) {
  const bool is_negative = !bytes.empty() && (static_cast<uint8_t>(bytes.back()) & 0x80) != 0;
  Limbs limbs = MagnitudeOf(bytes, is_negative);
  std::vector<uint32_t> groups;
  do {
    groups.push_back(NineDigits(limbs));
  } while (!limbs.empty());
  std::string digits = fmt::format("{}{}", is_negative ? "-" : "", groups.back());
  for (size_t i = groups.size() - 1; i-- > 0;) digits += fmt::format("{:09}", groups[i]);
  return digits;
}

std::optional<int64_t> SmallNumber(std::string_view digits) {
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}

std::optional<std::string> CanonicalDigits(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const bool all_digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (text.empty() || !all_digits) return std::nullopt;
  text.remove_prefix(std::min(text.find_first_not_of('0'), text.size() - 1));
  return (is_negative && text != "0" ? "-" : "") + std::string(text);
}

}  // namespace ckptd::pickle

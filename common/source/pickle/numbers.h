// Whole numbers of any length as decimal digits. Pure.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_NUMBERS_H_
#define CKPTD_COMMON_SOURCE_PICKLE_NUMBERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckptd::pickle {

// The digits of a number in two's complement, lowest byte first; "" is 0. The time grows with the
// square of the length, so numbers should be short.
std::string DigitsOf(std::string_view bytes);

// The number, if it fits 64 bits; the digits are those of DigitsOf or CanonicalDigits.
std::optional<int64_t> SmallNumber(std::string_view digits);

// The digits as Python writes them: "7" for "+007", "0" for "-0". Nullopt: it is no whole number.
std::optional<std::string> CanonicalDigits(std::string_view text);

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_NUMBERS_H_

#include "common/base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace ckptd {
namespace {

// The definition: the shortest form of a code point that is no surrogate.
std::string Encoded(uint32_t point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((point >> shift) & 0x3f)); };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0 | point >> 6), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | point >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8, EveryCodePointIsASequenceAndSurrogatesAreNone) {
  for (uint32_t point = 0; point < 0x120000; ++point) {
    const bool is_one = point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
    const std::string text = Encoded(point);
    ASSERT_EQ(Utf8SequenceAt(text + "x"), is_one ? text.size() : 0) << point;
    // An incomplete sequence is invalid.
    ASSERT_TRUE(text.size() == 1 || Utf8SequenceAt(text.substr(0, text.size() - 1)) == 0) << point;
  }
}

TEST(Utf8, LongerFormsThanNeededAreNone) {
  for (const std::string text : {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\x80"}) {
    EXPECT_EQ(Utf8SequenceAt(text), 0U);
  }
}

TEST(Utf8, TheValidPrefixEndsWhereTheFirstSequenceIsNone) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0U);
  EXPECT_EQ(ValidUtf8Prefix("sixteen letters!"), 16U);
  EXPECT_EQ(ValidUtf8Prefix("sixteen letter\xc3\xa9\xff and more"), 16U);
  EXPECT_EQ(ValidUtf8Prefix("ab\xe2\x80"), 2U);
}

}  // namespace
}  // namespace ckptd

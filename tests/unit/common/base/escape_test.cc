#include "common/base/escape.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(Escape, LeavesOrdinaryTextAlone) {
  EXPECT_EQ(Escape("model.layers.0/wéight 権重 \\n 😀"), "model.layers.0/wéight 権重 \\n 😀");
}

TEST(Escape, SpellsControlCharactersOut) {
  EXPECT_EQ(Escape(std::string_view("a\0b\x1b[31m\x7f\r\n\t", 12)), "a\\x00b\\x1b[31m\\x7f\\r\\n\\t");
}

TEST(Escape, SpellsTheEightBitControlsOut) { EXPECT_EQ(Escape("a\xc2\x9b" "31m"), "a\\u009b31m"); }

TEST(Escape, SpellsDirectionMarksOut) {
  EXPECT_EQ(Escape("a\xe2\x80\xae" "b\xe2\x81\xa6" "c"), "a\\u202eb\\u2066c");
}

TEST(Escape, SpellsBytesOutThatAreNoUtf8) {
  EXPECT_EQ(Escape("a\xff" "b"), "a\\xffb");                      // never starts a sequence
  EXPECT_EQ(Escape("\xc0\x9b"), "\\xc0\\x9b");                    // overlong escape
  EXPECT_EQ(Escape("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(Escape("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past the last code point
  EXPECT_EQ(Escape("x\xe2\x80"), "x\\xe2\\x80");                  // incomplete
}

}  // namespace
}  // namespace ckptd

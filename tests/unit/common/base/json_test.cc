#include "common/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidjson/document.h>

#include <string>

namespace ckptd {
namespace {

using ::testing::Optional;

std::optional<size_t> FaultIn(const std::string& text, JsonNumbers numbers = JsonNumbers::kOfKind) {
  rapidjson::Document document;
  const std::optional<size_t> fault = ParseJson(text, numbers, document);
  EXPECT_TRUE(!fault.has_value() || document.IsNull());
  return fault;
}

TEST(Json, IsReadWhole) {
  rapidjson::Document document;
  ASSERT_EQ(ParseJson(R"({"a": [18446744073709551615, 0.25]})", JsonNumbers::kExact, document),
            std::nullopt);
  EXPECT_EQ(document["a"][0].GetUint64(), UINT64_MAX);
  EXPECT_EQ(document["a"][1].GetDouble(), 0.25);
}

TEST(Json, MayBeginWithAByteOrderMark) { EXPECT_EQ(FaultIn("\xef\xbb\xbf{}"), std::nullopt); }

TEST(Json, EndsAtNoNul) {
  EXPECT_THAT(FaultIn(std::string("{}\0", 3)), Optional(2));
  EXPECT_THAT(FaultIn(std::string("[\"\0\"]", 5)), Optional(2));
}

TEST(Json, IsUtf8) { EXPECT_TRUE(FaultIn("[\"\xed\xa0\x80\"]").has_value()); }

TEST(Json, HasWholeSurrogatePairs) {
  EXPECT_EQ(FaultIn(R"(["\ud83d\ude00", "\\udc00"])"), std::nullopt);
  for (const std::string text : {R"(["\udc00"])", R"(["\uDFFF"])", R"(["\ud800"])",
                                 R"(["\ud83d\ude00\ude00"])", R"(["\ud800 \udc00"])"}) {
    EXPECT_TRUE(FaultIn(text).has_value()) << text;
  }
}

TEST(Json, IsOfBoundedDepth) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(FaultIn(nested(kMaxJsonDepth)), std::nullopt);
  EXPECT_THAT(FaultIn(nested(kMaxJsonDepth + 1)), Optional(kMaxJsonDepth));
}

TEST(Json, MayHoldNumbersThatRapidJsonReadsWrong) {
  const std::string long_zero = "0." + std::string(400, '0') + "1e400";
  for (const std::string& number :
       {std::string("0e400"), std::string("1e-999999999999"), std::string("-0.0E+999"), long_zero,
        std::string(300, '9'), "1" + std::string(400, '0') + "e-300"}) {
    EXPECT_EQ(FaultIn("[" + number + "]"), std::nullopt) << number;
    EXPECT_THAT(FaultIn("[" + number + "]", JsonNumbers::kExact), Optional(1)) << number;
    rapidjson::Document document;
    ParseJson(number, JsonNumbers::kOfKind, document);
    EXPECT_TRUE(document.IsDouble()) << number;
  }
}

TEST(Json, HoldsNoNumberBeyondDoubles) {
  for (const std::string& number : {std::string("1e309"), std::string("-1e309"),
                                    std::string(400, '9'), std::string("1e999999999999")}) {
    EXPECT_THAT(FaultIn("[" + number + "]"), Optional(1)) << number;
  }
}

TEST(Json, HoldsNoNumberOfAnotherGrammar) {
  for (const std::string text : {"01e400", "1.e400", "1e400e1", "-e400", "0x1", "+1", ".5", "Inf",
                                 "NaN", "00000000000000000000000001"}) {
    EXPECT_TRUE(FaultIn(text).has_value()) << text;
  }
}

TEST(Json, HasItsFirstFaultNamed) { EXPECT_THAT(FaultIn("[1,,1e400]"), Optional(3)); }

TEST(Json, StringsAreEscaped) {
  const std::string text = "a\"\\\n\x01\x7f\u00fc\U0001f600";
  EXPECT_EQ(JsonString(text, JsonCharacters::kUtf8), "\"a\\\"\\\\\\n\\u0001\x7f\u00fc\U0001f600\"");
  EXPECT_EQ(JsonString(text, JsonCharacters::kAscii), R"("a\"\\\n\u0001\u007f\u00fc\ud83d\ude00")");
  EXPECT_EQ(JsonString("a\xff", JsonCharacters::kAscii), R"("a\ufffd")");
}

}  // namespace
}  // namespace ckptd

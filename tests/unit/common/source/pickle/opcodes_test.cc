// Every opcode, in pickles that are written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/common/source/pickle/show.h"

namespace ckptd::pickle {
namespace {

using std::string_view_literals::operator""sv;

struct OpcodeCase {
  std::string_view pickle;
  std::string_view shown;
};

void ExpectShown(const std::vector<OpcodeCase>& cases) {
  for (const OpcodeCase& one : cases) {
    EXPECT_EQ(ShowPickle(one.pickle), one.shown) << absl::CHexEscape(std::string(one.pickle));
  }
}

TEST(PickleOpcodes, MakeConstants) {
  ExpectShown({{"N.", "None"},
               {"\x88.", "True"},
               {"\x89.", "False"},
               {"I01\n.", "True"},
               {"I00\n.", "False"}});
}

TEST(PickleOpcodes, MakeNumbers) {
  ExpectShown({{"I42\n.", "42"},
               {"I-7\n.", "-7"},
               {"L42L\n.", "42"},
               {"L-42\n.", "-42"},
               {"L123456789012345678901234567890L\n.", "123456789012345678901234567890"},
               {"L-0L\n.", "0"},
               {"L+007L\n.", "7"},
               {"J\xff\xff\xff\xff.", "-1"},
               {"J\x00\x00\x00\x80."sv, "-2147483648"},
               {"K\xff.", "255"},
               {"M\x01\x02.", "513"},
               {"\x8a\x00."sv, "0"},
               {"\x8a\x01\xff.", "-1"},
               {"\x8a\x02\xff\x00."sv, "255"},
               {"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", "9223372036854775807"},
               {"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."sv, "-9223372036854775808"},
               {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."sv, "9223372036854775808"},
               {"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff.", "-9223372036854775809"},
               {"\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80."sv, "-604462909807314587353088"},
               {"\x8b\x02\x00\x00\x00\x01\x80."sv, "-32767"},
               {"F1.5\n.", "1.5"},
               {"F-inf\n.", "-inf"},
               {"F1e+20\n.", "1e+20"},
               {"G\x3f\xf8\x00\x00\x00\x00\x00\x00."sv, "1.5"},
               {"G\x7f\xf0\x00\x00\x00\x00\x00\x00."sv, "inf"}});
}

TEST(PickleOpcodes, MakeTexts) {
  ExpectShown({{"X\x02\x00\x00\x00\xc3\xa9."sv, "'\xc3\xa9'"},
               {"\x8c\x00."sv, "''"},
               {"\x8c\x03"
                "abc.",
                "'abc'"},
               {"\x8d\x03\x00\x00\x00\x00\x00\x00\x00"
                "abc."sv,
                "'abc'"},
               {"Vabc\n.", "'abc'"},
               {"V\\u00e9\\U0001f600\n.", "'\xc3\xa9\xf0\x9f\x98\x80'"},
               {"V\xe9\n.", "'\xc3\xa9'"},
               {"V\\\\u0041\\x\\\n.", "'\\\\u0041\\x\\'"},
               // Halves of surrogate pairs, which UTF-8 does not have.
               {"V\\ud800\n.", "'\\ud800'"},
               {"\x8c\x05"
                "a\xed\xa0\x80z.",
                "'a\\ud800z'"}});
}

TEST(PickleOpcodes, MakeTextsOfPython2) {
  ExpectShown({{"S'abc'\n.", "'abc'"},
               {"S\"it's\"\n.", "'it's'"},
               {"S'\\x41\\101\\n\\\\\\q\\''\n.", "'AA\n\\\\q''"},
               {"S'\\xff'\n.", "b'\\xff'"},
               {"U\x03"
                "abc.",
                "'abc'"},
               {"U\x01\x80.", "b'\\x80'"},
               {"T\x03\x00\x00\x00"
                "abc."sv,
                "'abc'"}});
}

TEST(PickleOpcodes, MakeBytes) {
  ExpectShown({{"C\x02\x00\xff."sv, "b'\\x00\\xff'"},
               {"B\x01\x00\x00\x00z."sv, "b'z'"},
               {"\x8e\x01\x00\x00\x00\x00\x00\x00\x00z."sv, "b'z'"},
               {"\x96\x01\x00\x00\x00\x00\x00\x00\x00z."sv, "b'z'"}});
}

TEST(PickleOpcodes, MakeContainers) {
  ExpectShown({{").", "()"},
               {"(t.", "()"},
               {"(K\x01K\x02t.", "(1, 2)"},
               {"K\x01\x85.", "(1)"},
               {"K\x01K\x02\x86.", "(1, 2)"},
               {"K\x01K\x02K\x03\x87.", "(1, 2, 3)"},
               {"].", "[]"},
               {"(K\x01K\x02l.", "[1, 2]"},
               {"]K\x01"
                "a.",
                "[1]"},
               {"](K\x01K\x02"
                "e(K\x03"
                "e(e.",
                "[1, 2, 3]"},
               {"}.", "{}"},
               {"(K\x01K\x02"
                "d.",
                "{1: 2}"},
               {"}K\x01K\x02s.", "{1: 2}"},
               {"}(K\x01K\x02K\x03K\x04u(K\x05K\x06u.", "{1: 2, 3: 4, 5: 6}"},
               {"\x8f.", "set()"},
               {"\x8f(K\x01K\x02\x90.", "set(1, 2)"},
               {"(K\x01K\x02\x91.", "set(1, 2)"}});
}

TEST(PickleOpcodes, MoveWhatLiesOnTheStack) {
  ExpectShown({{"K\x01K\x02"
                "0.",
                "1"},
               {"K\x01(K\x02K\x03"
                "1.",
                "1"},
               {"K\x01("
                "0.",
                "1"},
               {"K\x01"
                "2\x86.",
                "(1, 1)"}});
}

TEST(PickleOpcodes, KeepAMemo) {
  ExpectShown({{"K\x01q\x05K\x02h\x05\x86.", "(2, 1)"},
               {"K\x01r\x05\x00\x00\x00K\x02j\x05\x00\x00\x00\x86."sv, "(2, 1)"},
               {"K\x01p5\nK\x02g5\n\x86.", "(2, 1)"},
               {"K\x01\x94K\x02\x94h\x00h\x01\x86\x86."sv, "(2, (1, 2))"},
               // A number far behind the others, and one below it afterwards.
               {"K\x01r\xff\xff\xff\xffK\x02j\xff\xff\xff\xff\x86.", "(2, 1)"},
               {"g3\n.",
                "SOURCE_INVALID: its pickle is damaged at byte 0: it takes number 3 of its memo, "
                "which it never put "
                "there; copy or download the file again, or save it anew"},
               // A list that holds itself.
               {"]q\x00h\x00"
                "a."sv,
                "[[[[[[[...]]]]]]]"}});
}

TEST(PickleOpcodes, SayWhichProtocolItIs) {
  EXPECT_EQ(ParseBytes("\x80\x04N.")->document.protocol, 4);
  EXPECT_EQ(ParseBytes("N.")->document.protocol, 0);
  EXPECT_EQ(ShowPickle("\x80\x05\x95\x02\x00\x00\x00\x00\x00\x00\x00N."sv), "None");
  EXPECT_THAT(ParseBytes("\x80\x06N."),
              FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
}

TEST(PickleOpcodes, EndAtStop) {
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseBytes("K\x01.K\x02."));
  EXPECT_EQ(parsed.bytes, 3u);
  EXPECT_EQ(Show(parsed.document.root), "1");
}

TEST(PickleOpcodes, OfExtensionsAndBuffersOutsideAreRefused) {
  for (const std::string_view pickle :
       {"\x82\x01."sv, "\x83\x01\x00."sv, "\x84\x01\x00\x00\x00."sv, "\x97."sv, "N\x98."sv}) {
    EXPECT_THAT(ParseBytes(pickle),
                FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
  }
}

// No opcode may take what is not there, be it bytes, values or marks.
TEST(PickleOpcodes, NeedTheirOperands) {
  std::vector<std::string> pickles = {"",
                                      "K",
                                      "M\x01",
                                      "J\x01",
                                      "G\x01",
                                      "X\x05",
                                      "I1",
                                      "I\n.",
                                      "Lx\n.",
                                      "F\n.",
                                      "Fx\n.",
                                      "Vx",
                                      "V\\u12\n.",
                                      "V\\U00110000\n.",
                                      "S'x\n.",
                                      "Sx\n.",
                                      "S'\\x4'\n.",
                                      "cx\n",
                                      "g\n.",
                                      "gx\n.",
                                      "g-1\n.",
                                      "h\x01.",
                                      "j\x01",
                                      "\x8a\x05z",
                                      "\x8c\x05z",
                                      "\x95\x09",
                                      "\x8c\x01\xff.",
                                      "\x8c\x03\xed\x9f\xff."};
  for (const char* opcode : {".",    "0",    "1", "2", "q\x01", "\x94",    "p1\n", "a",    "e",
                             "s",    "u",    "t", "l", "d",     "\x85",    "\x86", "\x87", "\x90",
                             "\x91", "\x93", "R", "b", "o",     "ia\nb\n", "\x81", "\x92", "Q"}) {
    pickles.push_back(std::string(opcode) + ".");
  }
  pickles.emplace_back("N(N\x86.");
  for (const char* opcode : {"a", "s", "u", "e", "\x90", "\x93", "R", "b", "\x81", "\x92"}) {
    pickles.push_back(std::string("N") + opcode + ".");
    pickles.push_back(std::string("N(N") + opcode + ".");  // not from below a mark
    pickles.push_back(std::string("NNN") + opcode + ".");  // of another kind
  }
  for (const char* wrong :
       {"}(Nu.", "(Nd.", "](N\x90.", "\x8f(Ne.", "}Na.", "]NNs.", ")}b.", "ca\nb\n}b.", "NNb.",
        "ca\nb\n]R.", "ca\nb\n)N\x92.", "K\x01)R.", "K\x01K\x02\x93.", "(o.", "\xff.", "z."}) {
    pickles.push_back(wrong);
  }
  for (const std::string& pickle : pickles) {
    const auto parsed = ParseBytes(pickle);
    EXPECT_THAT(parsed, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid))
        << absl::CHexEscape(pickle);
    EXPECT_TRUE(FactsOf(parsed.status()).contains("offset"));
  }
}

TEST(PickleOpcodes, OfNegativeLengthsAreDamage) {
  for (const std::string_view pickle : {"T\xff\xff\xff\xff.", "\x8b\xff\xff\xff\xff."}) {
    EXPECT_THAT(ParseBytes(pickle), FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  }
}

}  // namespace
}  // namespace ckptd::pickle

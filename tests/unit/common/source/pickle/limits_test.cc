// Each limit, on both sides; and what short pickles could have cost without one.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/common/source/pickle/show.h"

namespace ckptd::pickle {
namespace {

using std::string_literals::operator""s;
using std::string_view_literals::operator""sv;

std::string Repeat(std::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

void ExpectPastLimit(const std::string& pickle, const Limits& limits) {
  EXPECT_THAT(ParseBytes(pickle, limits),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
}

TEST(PickleLimits, BoundTheLengthOfAPickle) {
  const Limits limits = {.pickle_bytes = 10};
  EXPECT_OK(ParseBytes(Repeat("N", 9) + "." + "more", limits));
  ExpectPastLimit(Repeat("N", 10) + ".", limits);
}

TEST(PickleLimits, BoundTheValues) {
  const Limits limits = {.values = 10};
  EXPECT_OK(ParseBytes(Repeat("]", 10) + ".", limits));
  ExpectPastLimit(Repeat("]", 11) + ".", limits);
  EXPECT_OK(ParseBytes(Repeat("NK\x01)", 100) + ".", limits));  // which are there once
}

TEST(PickleLimits, BoundTheMemoryByWhatThePickleTakes) {
  const std::string pickle = Repeat("]", 600'000) + ".";
  EXPECT_OK(ParseBytes(pickle));
  ExpectPastLimit(pickle, {.stored_bytes = 1'000});
}

TEST(PickleLimits, KnowComplexKeysThatAreWholeNumbers) {
  ASSERT_OK_AND_ASSIGN(
      const Parsed parsed,
      ParseBytes("}(K\x01Nc__builtin__\ncomplex\n(F1\nF0\ntRNc__builtin__\ncomplex\n(F1\nF2\ntRNu."));
  EXPECT_EQ(parsed.document.root->entries().size(), 2u);
}

TEST(PickleLimits, LookAtTheBeginOfLongPickles) {
  const auto begin = [](std::string_view bytes) {
    return CheckBegin(std::as_bytes(std::span(bytes)));
  };
  EXPECT_OK(begin("NNNN"));
  EXPECT_OK(begin("X\xff\x00\x00\x00text"sv));
  EXPECT_THAT(begin("\0\0\0\0"sv), FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(begin("N.\0\0"sv), FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
}

TEST(PickleLimits, BoundTheMarks) {
  const Limits limits = {.depth = 10};
  EXPECT_OK(ParseBytes(Repeat("(", 10) + "N.", limits));
  ExpectPastLimit(Repeat("(", 11) + "N.", limits);
  EXPECT_OK(ParseBytes(Repeat("(t", 100) + ".", limits));
}

TEST(PickleLimits, BoundTheMemo) {
  const Limits limits = {.memo = 3};
  EXPECT_OK(ParseBytes("Nq\x01q\x02q\x03q\x01q\x02.", limits));
  ExpectPastLimit("Nq\x01q\x02q\x03q\x04.", limits);
  EXPECT_OK(ParseBytes("Nr\xff\xff\xff\xffq\x02q\x03.", limits));
  ExpectPastLimit("Nq\x01q\x02q\x03r\xff\xff\xff\xff.", limits);
  ExpectPastLimit("N\x94\x94\x94\x94.", limits);
}

TEST(PickleLimits, BoundOneText) {
  const Limits limits = {.text_bytes = 5};
  for (const std::string_view begin : std::initializer_list<std::string_view>{
           "\x8c{}{}.", "U{}{}.", "C{}{}.", "X{}\0\0\0{}."sv, "B{}\0\0\0{}."sv, "T{}\0\0\0{}."sv,
           "\x8d{}\0\0\0\0\0\0\0{}."sv, "\x8e{}\0\0\0\0\0\0\0{}."sv, "\x96{}\0\0\0\0\0\0\0{}."sv}) {
    const auto of_length = [begin](size_t length) {
      return fmt::format(fmt::runtime(begin), static_cast<char>(length), std::string(length, 'x'));
    };
    EXPECT_OK(ParseBytes(of_length(5), limits));
    ExpectPastLimit(of_length(6), limits);
  }
  EXPECT_OK(ParseBytes("Vabcde\n.", limits));
  ExpectPastLimit("Vabcdef\n.", limits);
  EXPECT_OK(ParseBytes("S'abc'\n.", limits));
  ExpectPastLimit("S'abcd'\n.", limits);
  ExpectPastLimit("cabcdef\nC\n.", limits);
  ExpectPastLimit("Pabcdef\n.", limits);
}

TEST(PickleLimits, BoundOneNumber) {
  const Limits limits = {.number_bytes = 3};
  EXPECT_OK(ParseBytes("\x8a\x03\x01\x01\x01.", limits));
  ExpectPastLimit("\x8a\x04\x01\x01\x01\x01.", limits);
  EXPECT_OK(ParseBytes("\x8b\x03\0\0\0\x01\x01\x01."sv, limits));
  ExpectPastLimit(std::string("\x8b\x04\0\0\0\x01\x01\x01\x01."sv), limits);
  EXPECT_OK(ParseBytes("L123L\n.", limits));
  ExpectPastLimit("L1234L\n.", limits);
  EXPECT_OK(ParseBytes("I123\n.", limits));
  ExpectPastLimit("I1234\n.", limits);
}

TEST(PickleLimits, BoundTheNameOfAClass) {
  EXPECT_OK(ParseBytes("c" + std::string(4095, 'a') + "\nC\n."));
  ExpectPastLimit("c" + std::string(4096, 'a') + "\nC\n.", {});
}

TEST(PickleLimits, BoundTheMemoryOfAll) {
  const std::string lists = Repeat("]", 10'000) + ".";
  EXPECT_OK(ParseBytes(lists, {.total_bytes = 1'000'000}));
  ExpectPastLimit(lists, {.total_bytes = 200'000});
  // Values that are there once fill the stack, and the memo.
  ExpectPastLimit(Repeat("N", 10'000) + ".", {.total_bytes = 50'000});
  ExpectPastLimit("N" + Repeat("\x94", 10'000) + ".", {.total_bytes = 50'000});
}

size_t MemoryOf(const std::string& pickle) {
  const auto parsed = ParseBytes(pickle);
  EXPECT_OK(parsed);
  return parsed.ok() ? parsed->document.arena.bytes() : 0;
}

TEST(PickleLimits, MemoryIsProportionalToTheBytes) {
  // The memo has this number alone, not all below it.
  EXPECT_LT(MemoryOf("Nr\xff\xff\xff\x7f."), 4'096u);
  // Lists of two times the list below, 300 deep: 2^300 elements for whoever unfolds them.
  EXPECT_LT(MemoryOf("N" + Repeat("2\x86", 300) + "."), 32'768u);
  for (const std::string_view opcode : std::initializer_list<std::string_view>{
           "]", "}", "\x8f", "G\0\0\0\0\0\0\0\0"sv, "\x8c\x01x", "]Na", "K\x01Q"}) {
    const std::string pickle = Repeat(opcode, 100'000) + ".";
    EXPECT_LT(MemoryOf(pickle), pickle.size() * 56 + 4'096) << opcode;
  }
}

// A short pickle that has a long value copied, or compared, for each of its bytes.
TEST(PickleLimits, LongValuesAreNotCopiedAgainAndAgain) {
  const std::string list = "(" + Repeat("N", 100'000) + "lq\x01";
  const std::string text = "X\xa0\x86\x01\x00"s + std::string(100'000, 'x') + "q\x01";
  const std::string pairs = "((" + Repeat("NN\x86", 50'000) + "lq\x01";
  const auto expect_bounded = [](const std::string& value, std::string_view call) {
    EXPECT_OK(ParseBytes(value + std::string(call) + "."));
    const auto parsed = ParseBytes(value + Repeat(call, 1'000) + ".");
    EXPECT_THAT(parsed, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
    EXPECT_THAT(parsed, Says("again and again"));
  };
  expect_bounded(list, "c__builtin__\nset\nh\x01\x85R");
  expect_bounded(list, "ctorch\nSize\nh\x01\x85R");
  expect_bounded(pairs, "ccollections\nOrderedDict\nh\x01\x85R");
  expect_bounded(text, "c_codecs\nencode\nh\x01\x85R");
  expect_bounded(text, "c__builtin__\nbytearray\nh\x01Vlatin1\n\x86R");
  const std::string names = "V" + std::string(2'000, 'x') + "\nq\x01";
  EXPECT_OK(ParseBytes(names + "h\x01h\x01\x93."));
  ExpectPastLimit(names + Repeat("h\x01h\x01\x93", 1'000) + ".", {});
  ExpectPastLimit(
      names + "ca\nb\nq\x02" + Repeat("c__builtin__\ngetattr\nh\x02h\x01\x86R", 1'000) + ".", {});
}

TEST(PickleLimits, LongKeysAreNotComparedAgainAndAgain) {
  const std::string text = "X\xa0\x86\x01\x00"s + std::string(100'000, 'x');
  const std::string keys = text + "q\x01" + text + "q\x02";
  const std::string entries = "(" + Repeat("h\x01Nh\x02N", 1'000) + "u.";
  EXPECT_OK(ParseBytes(keys + "}(h\x01Nh\x02Nu."));
  ExpectPastLimit(keys + "}" + entries, {});
}

}  // namespace
}  // namespace ckptd::pickle

#include "common/source/safetensors/header.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/common/source/file_bytes.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Runs both steps on the bytes of a whole file.
absl::StatusOr<SafetensorsHeader> ParseFile(std::string_view file) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t length,
                         ParseHeaderLength(std::as_bytes(std::span(file)), file.size()));
  return ParseSafetensorsHeader(file.substr(kHeaderLengthBytes, length), file.size());
}

absl::StatusOr<SafetensorsHeader> Parse(std::string_view json, size_t data_bytes) {
  return ParseFile(FileBytes(json, std::string(data_bytes, '\0')));
}

// The error's name, "OK" for none.
std::string ErrorOf(const absl::Status& status) {
  return status.ok() ? "OK" : FactsOf(status)["error"];
}
std::string ErrorIn(std::string_view json, size_t data_bytes = 0) {
  return ErrorOf(Parse(json, data_bytes).status());
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}
std::string Header(const std::string& entry) { return "{" + entry + "}"; }
const std::string kFine = Entry("a", "F32", "2", "0,8");  // 8 bytes of data

constexpr char kBadJson[] = "InvalidHeaderDeserialization";

// ---- Vectors of the reference.

TEST(SafetensorsHeader, AcceptsTheSimplestTensor) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       Parse(Header(Entry("test", "I32", "2,2", "0,16")), 16));
  ASSERT_EQ(header.tensors.size(), 1U);
  EXPECT_EQ(header.tensors[0].name, "test");
  EXPECT_EQ(header.tensors[0].dtype, Dtype::kI32);
  EXPECT_THAT(header.tensors[0].shape, ElementsAre(2, 2));
  EXPECT_EQ(header.tensors[0].end, 16U);
}

TEST(SafetensorsHeader, AcceptsWhiteSpaceAfterTheObject) { EXPECT_EQ(ErrorIn("{}\r \t\n"), "OK"); }

TEST(SafetensorsHeader, RefusesAProductThatOverflows) {
  EXPECT_EQ(ErrorIn(Header(Entry("a", "I32", "2,18446744073709551614", "0,16")), 16),
            "ValidationOverflow");
}

TEST(SafetensorsHeader, RefusesAByteCountThatOverflows) {
  EXPECT_EQ(ErrorIn(Header(Entry("a", "I32", "2,9223372036854775807", "0,16")), 16),
            "ValidationOverflow");
}

TEST(SafetensorsHeader, RefusesOffsetsThatDoNotMatchTheShape) {
  EXPECT_EQ(ErrorIn(Header(Entry("a", "I32", "2,2", "0,4")), 4), "TensorInvalidInfo");
}

TEST(SafetensorsHeader, RefusesAFirstTensorThatDoesNotStartAtZero) {
  EXPECT_EQ(ErrorIn(Header(Entry("a", "I32", "2,2", "4,20")), 20), "InvalidOffset");
}

TEST(SafetensorsHeader, RefusesOneByteAfterTheLastTensor) {
  EXPECT_EQ(ErrorIn(Header(kFine), 9), "MetadataIncompleteBuffer");
}

TEST(SafetensorsHeader, RefusesOneByteTooFew) {
  EXPECT_EQ(ErrorIn(Header(kFine), 7), "MetadataIncompleteBuffer");
}

TEST(SafetensorsHeader, RefusesASubByteTensorThatDoesNotFillItsLastByte) {
  EXPECT_EQ(ErrorIn(Header(Entry("a", "F4", "3", "0,2")), 2), "MisalignedSlice");
}

TEST(SafetensorsHeader, AcceptsSubByteTensorsThatFillTheirBytes) {
  EXPECT_EQ(
      ErrorIn(Header(Entry("a", "F4", "4", "0,2") + "," + Entry("b", "F6_E3M2", "4", "2,5")), 5),
      "OK");
}

constexpr char kGolden[] =
    R"({"__metadata__":{"format":"pt"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
    R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
    R"("z":{"dtype":"U8","shape":[0,4],"data_offsets":[22,22]},)"
    R"("k":{"dtype":"BOOL","shape":[2],"data_offsets":[22,24]}}      )";

TEST(SafetensorsHeader, ReadsTheGoldenHeader) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, Parse(kGolden, 24));
  std::vector<std::string> seen;
  for (const HeaderTensor& t : header.tensors) {
    seen.push_back(fmt::format("{} {} [{}] {}-{}", t.name, NameOf(t.dtype), fmt::join(t.shape, ","),
                               t.begin, t.end));
  }
  EXPECT_THAT(seen, ElementsAre("a F32 [2] 8-16", "b BF16 [3] 16-22", "k BOOL [2] 22-24",
                                "s I64 [] 0-8", "z U8 [0,4] 22-22"));
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
}

// ---- Lengths, both sides of each limit.

TEST(SafetensorsHeader, RefusesAFileOfSevenBytes) {
  EXPECT_EQ(ErrorOf(ParseFile(std::string(7, '\0')).status()), "HeaderTooSmall");
}

TEST(SafetensorsHeader, AcceptsAFileOfTenBytes) { EXPECT_EQ(ErrorIn("{}"), "OK"); }

std::string Length(uint64_t n) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(n >> (8 * i));
  return out;
}
std::string LengthError(uint64_t n, uint64_t file_bytes) {
  const std::string start = Length(n);
  return ErrorOf(ParseHeaderLength(std::as_bytes(std::span(start)), file_bytes).status());
}

TEST(SafetensorsHeader, AcceptsAHeaderOfTheLargestLength) {
  EXPECT_EQ(LengthError(kMaxHeaderBytes, kMaxHeaderBytes + 8), "OK");
}

TEST(SafetensorsHeader, RefusesAHeaderOneByteLonger) {
  EXPECT_EQ(LengthError(kMaxHeaderBytes + 1, kMaxHeaderBytes + 100), "HeaderTooLarge");
}

TEST(SafetensorsHeader, RefusesALengthThatWouldWrapAround) {
  EXPECT_EQ(LengthError(UINT64_MAX - 3, 100), "HeaderTooLarge");
}

TEST(SafetensorsHeader, RefusesAPointerOfGitLfsByName) {
  EXPECT_THAT(ParseFile("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"),
              Says("it is a pointer of git-lfs, not the file itself; run `git lfs pull`"));
}

TEST(SafetensorsHeader, RefusesALengthPastTheEndOfTheFile) {
  EXPECT_EQ(LengthError(93, 100), "InvalidHeaderLength");
  EXPECT_EQ(LengthError(92, 100), "OK");
}

TEST(SafetensorsHeader, ReadsTheLengthAsLittleEndian) {
  const std::string start = Length(0x010203);
  ASSERT_OK_AND_ASSIGN(const uint64_t length,
                       ParseHeaderLength(std::as_bytes(std::span(start)), 1'000'000));
  EXPECT_EQ(length, 0x010203U);
}

TEST(SafetensorsHeader, AcceptsTheLargestRankAndRefusesOneMore) {
  const auto ones = [](size_t n) {
    return fmt::format("{}", fmt::join(std::vector<int>(n, 1), ","));
  };
  EXPECT_EQ(ErrorIn(Header(Entry("a", "U8", ones(kMaxTensorDims), "0,1")), 1), "OK");
  EXPECT_EQ(ErrorIn(Header(Entry("a", "U8", ones(kMaxTensorDims + 1), "0,1")), 1), "LimitExceeded");
}

TEST(SafetensorsHeader, AcceptsTheLongestNameAndRefusesOneByteMore) {
  EXPECT_EQ(ErrorIn(Header(Entry(std::string(kMaxTensorNameBytes, 'n'), "U8", "1", "0,1")), 1),
            "OK");
  EXPECT_EQ(ErrorIn(Header(Entry(std::string(kMaxTensorNameBytes + 1, 'n'), "U8", "1", "0,1")), 1),
            "LimitExceeded");
}

TEST(SafetensorsHeader, AcceptsTheMostTensorsAndRefusesOneMore) {
  std::string json = "{";
  for (size_t i = 0; i < kMaxHeaderTensors; ++i) {
    fmt::format_to(std::back_inserter(json),
                   R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  }
  json.back() = '}';
  EXPECT_EQ(ErrorIn(json), "OK");
  json.back() = ',';
  EXPECT_EQ(ErrorIn(json + Entry("one more", "U8", "0", "0,0") + "}"), "LimitExceeded");
}

TEST(SafetensorsHeader, AcceptsTheDeepestNestingAndRefusesOneMore) {
  const auto nested = [](size_t depth) {  // the header and the entry are two levels
    return R"({"a":{"x":)" + std::string(depth - 2, '[') + std::string(depth - 2, ']') +
           R"(,"dtype":"U8","shape":[],"data_offsets":[0,1]}})";
  };
  EXPECT_EQ(ErrorIn(nested(kMaxHeaderDepth), 1), "OK");
  EXPECT_EQ(ErrorIn(nested(kMaxHeaderDepth + 1), 1), kBadJson);
}

TEST(SafetensorsHeader, SurvivesTenMillionOpenBrackets) {
  EXPECT_EQ(ErrorIn(R"({"a":{"x":)" + std::string(10'000'000, '[')), kBadJson);
}

// ---- What the reference refuses and tolerates in the JSON.

TEST(SafetensorsHeader, RefusesBytesThatAreNotUtf8BeforeItLooksAtTheJson) {
  EXPECT_EQ(ErrorIn("\xff not json"), "InvalidHeader");
  EXPECT_EQ(ErrorIn("{\"\xed\xa0\x80\":1}"), "InvalidHeader");  // a surrogate
  EXPECT_EQ(ErrorIn("{\"\xc0\xaf\":1}"), "InvalidHeader");      // overlong
}

class BadJson : public ::testing::TestWithParam<std::string> {};
TEST_P(BadJson, IsRefused) { EXPECT_EQ(ErrorIn(GetParam(), 8), kBadJson) << GetParam(); }

std::string WithField(const std::string& fields) { return R"({"a":{)" + fields + "}}"; }

INSTANTIATE_TEST_SUITE_P(Syntax, BadJson,
                         ::testing::Values("", "null", "[]", "3", "\"a\"", "{", Header(kFine) + "x",
                                           Header(kFine) + std::string(1, '\0'),
                                           std::string("\xef\xbb\xbf").append(Header(kFine)),
                                           std::string("\f").append(Header(kFine)),
                                           Header(kFine + ","), "{'a':1}", "{\"a\":NaN}",
                                           Header("\"\x01\":{}," + kFine),
                                           Header("\"\\udc00\":{}," + kFine),
                                           Header("\"\\ud800\":{}," + kFine),
                                           Header("\"\\q\":{}," + kFine)));
INSTANTIATE_TEST_SUITE_P(
    Schema, BadJson,
    ::testing::Values(
        R"({"a":null})", R"({"a":["F32",[2],[0,8]]})", R"({"a":3})",
        WithField(R"("shape":[2],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[2])"),
        WithField(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"),
        WithField(R"("dtype":"UNSPECIFIED","shape":[2],"data_offsets":[0,8])"),
        WithField(R"("dtype":17,"shape":[2],"data_offsets":[0,8])"),
        WithField(R"("dtype":{"F32":null},"shape":[2],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[2],"data_offsets":[-0,8])"),
        WithField(R"("dtype":"F32","shape":[2],"data_offsets":[0])"),
        WithField(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"),
        WithField(R"("dtype":"F32","shape":[2],"data_offsets":{"0":0,"1":8})"),
        WithField(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"),
        WithField(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1e400)"),
        Header(R"("__metadata__":{"a":1},)" + kFine),
        Header(R"("__metadata__":{"a":null},)" + kFine),
        Header(R"("__metadata__":{"a":{}},)" + kFine), Header(R"("__metadata__":[],)" + kFine),
        Header(R"("__metadata__":{},"__metadata__":{},)" + kFine),
        Header(R"("__metadata__":null,"__metadata__":null,)" + kFine),
        // An entry that is overridden later must be right all the same.
        Header(Entry("a", "F33", "2", "0,8") + "," + kFine)));

class GoodJson : public ::testing::TestWithParam<std::string> {};
TEST_P(GoodJson, IsAccepted) { EXPECT_EQ(ErrorIn(GetParam(), 8), "OK") << GetParam(); }
INSTANTIATE_TEST_SUITE_P(
    Tolerated, GoodJson,
    ::testing::Values(
        std::string("\r\n\t ").append(Header(kFine)), Header(R"("__metadata__":null,)" + kFine),
        Header(R"("__metadata__":{"a":"b","a":"c"},)" + kFine),
        WithField(
            R"("x":1,"dtype":"F32","x":-1.5e3,"shape":[2],"x":[{"y":[]}],"data_offsets":[0,8])"),
        WithField(R"("\u0064type":"F32","shape":[2],"data_offsets":[0,8])"),
        Header(Entry("", "F32", "2", "0,8")), Header(Entry("\\u0000", "F32", "2", "0,8")),
        Header(Entry("\\ud83d\\ude00", "F32", "2", "0,8")),
        // A zero in front of what would overflow.
        Header(kFine + "," + Entry("z", "U8", "0,18446744073709551615,2", "8,8"))));

TEST(SafetensorsHeader, TakesTheLastOfTwoEntriesWithOneName) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       Parse(Header(Entry("a", "U8", "3", "0,3") + "," + kFine), 8));
  ASSERT_EQ(header.tensors.size(), 1U);
  EXPECT_EQ(header.tensors[0].dtype, Dtype::kF32);
  EXPECT_EQ(header.repeated_tensors.count, 1U);
  EXPECT_THAT(header.repeated_tensors.names, ElementsAre("a"));
  EXPECT_EQ(header.repeated_metadata.count, 0U);
}

TEST(SafetensorsHeader, TakesTheLastOfTwoMetadataEntriesWithOneKey) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       Parse(R"({"__metadata__":{"k":"first","k":"last"}})", 0));
  EXPECT_THAT(header.metadata, ElementsAre(Pair("k", "last")));
  EXPECT_THAT(header.repeated_metadata.names, ElementsAre("k"));
}

TEST(SafetensorsHeader, CountsRepeatedKeysAndNamesAFew) {
  std::string entries = R"("k":"")";
  for (int i = 0; i < 1000; ++i) entries += R"(,"k":"")";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       Parse(R"({"__metadata__":{)" + entries + "}}", 0));
  EXPECT_EQ(header.repeated_metadata.count, 1000U);
  EXPECT_EQ(header.repeated_metadata.names.size(), RepeatedKeys::kMostNames);
}

TEST(SafetensorsHeader, RefusesAZeroAfterWhatOverflows) {
  EXPECT_EQ(ErrorIn(Header(Entry("a", "U8", "18446744073709551615,2,0", "0,0"))),
            "ValidationOverflow");
}

// ---- Offsets.

TEST(SafetensorsHeader, RefusesATensorThatStartsPastTheOneBefore) {
  EXPECT_EQ(ErrorIn(Header(kFine + "," + Entry("b", "U8", "1", "9,10")), 10), "InvalidOffset");
}

TEST(SafetensorsHeader, RefusesATensorThatOverlapsTheOneBefore) {
  EXPECT_EQ(ErrorIn(Header(kFine + "," + Entry("b", "U8", "2", "7,9")), 9), "InvalidOffset");
}

TEST(SafetensorsHeader, RefusesAnEndBeforeItsStart) {
  EXPECT_EQ(ErrorIn(Header(kFine + "," + Entry("b", "U8", "1", "8,7")), 8), "InvalidOffset");
}

TEST(SafetensorsHeader, AcceptsTensorsInAnyOrder) {
  EXPECT_EQ(ErrorIn(Header(Entry("b", "U8", "1", "8,9") + "," + kFine), 9), "OK");
}

TEST(SafetensorsHeader, AcceptsAnEmptyTensorBetweenTwoOthers) {
  EXPECT_EQ(ErrorIn(Header(kFine + "," + Entry("e", "F64", "0", "8,8") + "," +
                           Entry("t", "U8", "1", "8,9")),
                    9),
            "OK");
}

// ---- Sentences.

TEST(SafetensorsHeader, SaysWhichTensorIsWrongAndWhatToTry) {
  const auto header = Parse(Header(kFine + "," + Entry("mlp.weight", "U8", "1", "9,10")), 10);
  EXPECT_THAT(header, FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(header, Says("InvalidOffset: tensor \"mlp.weight\" starts at byte 9 of the data, "
                           "the one before it ends at byte 8; the file is damaged"));
  EXPECT_EQ(FactsOf(header.status())["tensor"], "mlp.weight");
}

TEST(SafetensorsHeader, KeepsAHostileNameOutOfItsSentence) {
  const auto header = Parse(Header(Entry(std::string(5000, 'n') + "\\n", "F33", "", "")), 0);
  EXPECT_LT(MessageOf(header.status()).size(), 600U);
}

TEST(SafetensorsHeader, SaysThatAFileIsCutShort) {
  EXPECT_THAT(Parse(Header(kFine), 7),
              Says("its tensors cover 8 bytes of data, the file has 7 (cut short)"));
}

TEST(SafetensorsHeader, ReadsAHundredThousandTensorsInWellUnderASecond) {
  std::string json = "{";
  for (uint64_t i = 0; i < 100'000; ++i) {
    json += Entry(fmt::format("model.layers.{}.experts.{}.w", i / 256, i % 256), "BF16",
                  "2048,7168", fmt::format("{},{}", i * 29360128, (i + 1) * 29360128)) +
            ",";
  }
  json.back() = '}';
  // Of this process alone: other processes may keep it waiting for as long as they like.
  const std::clock_t start = std::clock();
  EXPECT_OK(ParseSafetensorsHeader(json, 8 + json.size() + 100'000 * uint64_t{29360128}));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  RecordProperty("milliseconds", std::to_string(seconds * 1000));
  EXPECT_LT(seconds, 5.0);  // loose: sanitizers run this too
}

}  // namespace
}  // namespace ckptd

#include "tests/testing/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/open.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// As the reference library writes {"a": f32 [1, 2], "k": bool, "s": i64 7}.
TEST(SafetensorsWriter, WritesWhatTheReferenceWrites) {
  using namespace std::string_view_literals;
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  ASSERT_OK(WriteSafetensors(
      path, {{"a", Dtype::kF32, {2}}, {"k", Dtype::kBool, {2}}, {"s", Dtype::kI64, {}}},
      {{"format", "pt"}},
      std::vector<std::span<const std::byte>>{Bytes("\0\0\x80\x3f\0\0\0\x40"sv), Bytes("\1\0"sv),
                                              Bytes("\7\0\0\0\0\0\0\0"sv)}));
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
      R"("k":{"dtype":"BOOL","shape":[2],"data_offsets":[16,18]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(ReadAll(path), FileBytes(padded, "\7\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40\1\0"sv));
}

TEST(SafetensorsWriter, OrdersByDtypeDescendingThenByName) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsLayout layout, LayoutSafetensors({{"b", Dtype::kU8, {1}},
                                                                          {"z", Dtype::kI64, {1}},
                                                                          {"a", Dtype::kU8, {1}},
                                                                          {"m", Dtype::kU64, {1}}},
                                                                         {}));
  EXPECT_THAT(layout.order, ElementsAre(3, 1, 2, 0));
}

TEST(SafetensorsWriter, PadsTheHeaderToAMultipleOfEight) {
  for (size_t length = 1; length < 10; ++length) {
    ASSERT_OK_AND_ASSIGN(const SafetensorsLayout layout,
                         LayoutSafetensors({{std::string(length, 'n'), Dtype::kU8, {1}}}, {}));
    EXPECT_EQ(layout.start.size() % 8, 0U);
  }
}

TEST(SafetensorsWriter, WritesAnEmptyFileThatCanBeRead) {
  const TempFolder folder;
  ASSERT_OK(WriteSafetensors(folder / "m.safetensors", {}, {}, TensorBytesSource()));
  EXPECT_OK(OpenCheckpoint(folder / "m.safetensors"));
}

TEST(SafetensorsWriter, EscapesNamesSoThatTheyReadBack) {
  const TempFolder folder;
  const std::string name = "q\"\\\n\x01\x7f \xe6\xa8\xa1";
  ASSERT_OK(WriteSafetensors(folder / "m.safetensors", {{name, Dtype::kU8, {1}}}, {{name, name}},
                             {Bytes("x")}));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder / "m.safetensors"));
  EXPECT_EQ(index.tensors.at(0).name, name);
  EXPECT_EQ(index.metadata.at(name), name);
}

TEST(SafetensorsWriter, AsksForALargeTensorPieceByPiece) {
  const TempFolder folder;
  const uint64_t bytes = (uint64_t{9} << 20) + 5;
  std::vector<uint64_t> offsets;
  ASSERT_OK(WriteSafetensors(folder / "m.safetensors", {{"a", Dtype::kU8, {bytes}}}, {},
                             [&offsets](size_t, uint64_t offset, std::span<std::byte> out) {
                               offsets.push_back(offset);
                               std::fill(out.begin(), out.end(), std::byte{1});
                               return absl::OkStatus();
                             }));
  EXPECT_THAT(offsets, ElementsAre(0, 4U << 20, 8U << 20));
  EXPECT_OK(OpenCheckpoint(folder / "m.safetensors"));
}

TEST(SafetensorsWriter, LeavesTheOldFileWhenItsSourceFails) {
  const TempFolder folder;
  const std::string path = folder.Write("m.safetensors", "old");
  const absl::Status status = WriteSafetensors(path, {{"a", Dtype::kU8, {1}}}, {},
                                               [](size_t, uint64_t, std::span<std::byte>) {
                                                 return absl::UnavailableError("the source failed");
                                               });
  EXPECT_THAT(status, Says("the source failed"));
  EXPECT_EQ(ReadAll(path), "old");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST(SafetensorsWriter, SaysWhichFileItCannotCreate) {
  EXPECT_THAT(WriteSafetensors("/nowhere/m.safetensors", {}, {}, TensorBytesSource()),
              Says("/nowhere/m.safetensors"));
}

TEST(SafetensorsWriter, RefusesBytesThatDoNotFillTheTensor) {
  const TempFolder folder;
  EXPECT_THAT(WriteSafetensors(folder / "m", {{"a", Dtype::kF32, {2}}}, {}, {Bytes("four")}),
              Says("tensor \"a\" needs 8 bytes, 4 were given"));
}

class BadTensors : public ::testing::TestWithParam<std::vector<TensorToWrite>> {};
TEST_P(BadTensors, AreRefused) {
  EXPECT_THAT(LayoutSafetensors(GetParam(), {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
}
INSTANTIATE_TEST_SUITE_P(
    Tensors, BadTensors,
    ::testing::Values(std::vector<TensorToWrite>{{"a", Dtype::kU8, {1}}, {"a", Dtype::kF32, {1}}},
                      std::vector<TensorToWrite>{{"__metadata__", Dtype::kU8, {1}}},
                      std::vector<TensorToWrite>{{"\xff", Dtype::kU8, {1}}},
                      std::vector<TensorToWrite>{{"a", Dtype::kUnspecified, {1}}},
                      std::vector<TensorToWrite>{{"a", Dtype::kF4, {3}}},
                      std::vector<TensorToWrite>{{"a", Dtype::kU8, {UINT64_MAX / 2, 4}}}));

}  // namespace
}  // namespace ckptd

#include "common/export/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/export/dcp_folder.h"
#include "common/export/output_file.h"
#include "common/export/safetensors_file.h"
#include "common/export/zip_writer.h"
#include "common/source/open.h"
#include "common/source/registry.h"
#include "common/source/zip/archive.h"
#include "tests/testing/pieces_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() : source_(3, 40) {
    source_.Write(dir_.path());
    // Which safetensors does not have.
    std::erase_if(source_.index.tensors,
                  [](const TensorEntry& tensor) { return tensor.dtype == Dtype::kBits16; });
  }

  absl::StatusOr<ExportResult> Run(const std::string& target, ExportOptions options) {
    // No format reads what PiecesSource writes.
    index_ = source_.index;
    for (TensorEntry& tensor : index_.tensors) tensor.kind = EntryKind::kParameter;
    CKPTD_ASSIGN_OR_RETURN(const Content content, Choose(index_, {}));
    return Export(content, dir_ / target, options);
  }
  static std::string Hidden(const std::string& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".")) return name;
    }
    return "";
  }

  TempFolder dir_;
  PiecesSource source_;
  CheckpointIndex index_;
};

TEST_F(ExportTest, HasAllBytesOfATensorInOneFile) {
  ASSERT_OK(Run("m.safetensors", {.is_file = true}));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex written, OpenCheckpoint(dir_ / "m.safetensors"));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadSmallFile(dir_ / "m.safetensors", 1 << 24));
  ASSERT_EQ(written.tensors.size(), source_.index.tensors.size());
  for (const TensorEntry& tensor : written.tensors) {
    const Piece& piece = tensor.pieces.front();
    const auto expected = source_.BytesOf(tensor.name);
    EXPECT_EQ(bytes.substr(piece.offset, piece.bytes),
              std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
  }
}

TEST_F(ExportTest, StopsWhenItIsToldAndLeavesNothing) {
  uint64_t written = 0;
  const auto stop = [&written](uint64_t bytes) { return (written += bytes) < 100; };
  EXPECT_TRUE(absl::IsCancelled(Run("out", {.on_written = stop}).status()));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  EXPECT_EQ(Hidden(dir_.path()), "");
}

TEST_F(ExportTest, FailsWhereTheSourceIsWrittenToMeanwhile) {
  const auto write = [this](uint64_t) {
    dir_.Write("two", "other");
    return true;
  };
  EXPECT_THAT(Run("out", {.on_written = write}),
              FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(ExportTest, CopiesFilesBesideIntoAFolder) {
  dir_.Write("a/config.json", "{}");
  ASSERT_OK_AND_ASSIGN(const ExportResult result,
                       Run("out", {.sidecars = FindSidecars(dir_ / "a")}));
  EXPECT_THAT(result.files, ElementsAre("model.safetensors", "config.json"));
  EXPECT_EQ(ReadSmallFile(dir_ / "out/config.json", 10).value(), "{}");
}

TEST_F(ExportTest, CountsTheBytesThatItWrites) {
  uint64_t written = 0;
  const auto count = [&written](uint64_t bytes) { return (written += bytes) > 0; };
  ASSERT_OK_AND_ASSIGN(const ExportResult result,
                       Run("out", {.to = ExportFormat::kTorch, .on_written = count}));
  EXPECT_EQ(written, result.bytes);
}

TEST_F(ExportTest, RefusesBeforehandWhatTheFormatDoesNotHave) {
  source_.index.tensors[5].dtype = Dtype::kBits8;
  EXPECT_THAT(Run("out", {}), FailsWith(absl::StatusCode::kUnimplemented, reason::kTargetInvalid));
  EXPECT_THAT(Run("out", {}), Says("BITS8"));
  source_.index.tensors[5].dtype = Dtype::kF6E2M3;
  EXPECT_THAT(Run("out", {.to = ExportFormat::kTorch}),
              FailsWith(absl::StatusCode::kUnimplemented, reason::kTargetInvalid));
}

TEST(Sidecars, AreWhatOthersOfItsKindNeed) {
  const TempFolder dir;
  for (const char* name : {"config.json", "tokenizer.model", "LICENSE", "modeling_x.py",
                           "model.safetensors", "model.safetensors.index.json", "optimizer.pt",
                           "trainer_state.json", ".hidden.json", "model-00001.bin"}) {
    dir.Write(name, "x");
  }
  fs::create_directory(dir / "folder.json");
  EXPECT_THAT(FindSidecars(dir.path()),
              ElementsAre(dir / "LICENSE", dir / "config.json", dir / "modeling_x.py",
                          dir / "tokenizer.model"));
  EXPECT_THAT(FindSidecars(dir / "config.json"), IsEmpty());
}

TEST(SafetensorsHeader, HasTensorsByDtypeAndNameAndWholeWords) {
  const TensorEntry scalar{.name = "s", .dtype = Dtype::kF16, .shape = {}};
  const TensorEntry rows{.name = "r", .dtype = Dtype::kF16, .shape = {2, 3}};
  const TensorEntry wide{.name = "w", .dtype = Dtype::kI64, .shape = {1}};
  const OutTensor outs[] = {{"z", Dtype::kF16, &scalar, {}, 2},
                            {"a\"\n", Dtype::kF16, &rows, {}, 12},
                            {"w", Dtype::kI64, &wide, {}, 8}};
  std::vector<const OutTensor*> order = {&outs[0], &outs[1], &outs[2]};
  SortForSafetensors(order);
  ASSERT_OK_AND_ASSIGN(const std::string header, SafetensorsHeader(order, {{"format", "pt"}}));
  const std::string json =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"w\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
      "\"a\\\"\\n\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
      "\"z\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[20,22]}}";
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(header.substr(8, json.size()), json);
  EXPECT_EQ(header.find_first_not_of(' ', 8 + json.size()), std::string::npos);
}

TEST(SafetensorsHeader, RefusesTheNameOfMetadata) {
  const TensorEntry entry{.name = "x", .dtype = Dtype::kF16, .shape = {}};
  const OutTensor out{"__metadata__", Dtype::kF16, &entry, {}, 2};
  EXPECT_THAT(SafetensorsHeader({&out}, {}),
              FailsWith(absl::StatusCode::kUnimplemented, reason::kTargetInvalid));
}

TEST(ZipWriter, WritesArchivesThatLieAnywhereInAFile) {
  const TempFolder dir;
  ASSERT_OK_AND_ASSIGN(OutputFile out, OutputFile::Create(dir / "f"));
  ASSERT_OK(out.Append("something in front"));
  const uint64_t begin = out.size();
  ZipWriter zip(out, "root");
  ASSERT_OK(zip.Add("a", "text"));
  ASSERT_OK(zip.Begin("data/0", 3));
  ASSERT_OK(out.Append("xyz"));
  ASSERT_OK(zip.End(0xeb8eba67));  // of xyz
  ASSERT_OK(zip.Finish());
  const uint64_t end = out.size();
  ASSERT_OK(out.Append("behind"));
  ASSERT_OK(out.Finish());
  ASSERT_OK_AND_ASSIGN(const auto object, OpenObject(dir / "f"));
  ASSERT_OK_AND_ASSIGN(const zip::Archive archive, zip::Archive::Open(object, begin, end - begin));
  ASSERT_EQ(archive.records().size(), 2u);
  EXPECT_EQ(archive.Read(*archive.Find("root/a"), 100).value(), "text");
  const zip::Record& data = *archive.Find("root/data/0");
  EXPECT_EQ(archive.Read(data, 100).value(), "xyz");
  EXPECT_EQ((data.offset - begin) % ZipWriter::kAlignment, 0u);
}

TEST(ZipWriter, WritesLargeRecordsAndMany) {
  // A sparse file: the zeros of the record take no room.
  const TempFolder dir;
  constexpr uint64_t kBytes = (uint64_t{1} << 32) + 5;
  constexpr size_t kMany = 70'000;
  ASSERT_OK_AND_ASSIGN(OutputFile out, OutputFile::Create(dir / "f"));
  ZipWriter zip(out, "r");
  ASSERT_OK(zip.Begin("large", kBytes));
  ASSERT_OK(out.Skip(kBytes));
  ASSERT_OK(zip.End(0));
  for (size_t i = 0; i < kMany; ++i) ASSERT_OK(zip.Add(std::to_string(i), "x"));
  ASSERT_OK(zip.Finish());
  ASSERT_OK(out.Finish());
  ASSERT_OK_AND_ASSIGN(const auto object, OpenObject(dir / "f"));
  ASSERT_OK_AND_ASSIGN(const zip::Archive archive, zip::Archive::Open(object));
  EXPECT_EQ(archive.records().size(), kMany + 1);
  EXPECT_EQ(archive.Find("r/large")->bytes, kBytes);
  EXPECT_EQ(archive.Read(*archive.Find("r/69999"), 10).value(), "x");
}

}  // namespace
}  // namespace ckptd

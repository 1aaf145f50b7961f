#include "common/source/manifest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/source/open.h"
#include "common/source/path_text.h"
#include "common/source/piece.h"
#include "tests/testing/pieces_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"
#include "tests/unit/common/source/open_helpers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "tensor in file: what"
std::vector<std::string> Texts(const std::vector<ManifestDifference>& differences) {
  std::vector<std::string> texts;
  for (const ManifestDifference& one : differences) {
    texts.push_back(fmt::format("{} in {}: {}", one.tensor, one.file, one.what));
  }
  return texts;
}

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    folder_.Write("a.safetensors", TwoTensors("x", "y"));
    folder_.Write("b.safetensors", OneTensor("z"));
    kept_ = Now();
  }
  Manifest Now(unsigned threads = 2) const {
    return MakeManifest(OpenCheckpoint(folder_.path()).value(), threads).value();
  }
  // Overwrites the last byte.
  void Damage(const std::string& name) const {
    std::string bytes = ReadSmallFile(folder_ / name, 1 << 20).value();
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    folder_.Write(name, bytes);
  }
  std::vector<std::string> Differences() const { return Texts(Compare(kept_, Now())); }

  TempFolder folder_;
  Manifest kept_;
};

TEST_F(ManifestTest, HasADigestOfEachTensorAndFile) {
  ASSERT_EQ(kept_.tensors.size(), 3u);
  EXPECT_EQ(kept_.tensors[1].name, "y");
  EXPECT_EQ(kept_.tensors[1].pieces[0].digest, Xxh3("y"));
  ASSERT_EQ(kept_.files.size(), 2u);
  EXPECT_EQ(kept_.files[1].name, "b.safetensors");
  EXPECT_NE(kept_.files[0].digest, kept_.files[1].digest);
}

TEST_F(ManifestTest, HashesLongTensorsByBlocks) {
  const std::string data(3 * kDigestBlockBytes / 2, 'd');
  const std::string json = fmt::format(
      R"({{"long":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}})", data.size());
  const std::string path = folder_.Write("long/l.safetensors", FileBytes(json, data));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, MakeManifest(OpenCheckpoint(path).value()));
  EXPECT_EQ(manifest.tensors.at(0).pieces[0].digest, TensorDigest(std::as_bytes(std::span(data))));
}

TEST_F(ManifestTest, TakesASingleFileOfAnotherNameByItsBytes) {
  const auto of = [this](const std::string& name) {
    return MakeManifest(OpenCheckpoint(folder_ / name).value()).value();
  };
  const Manifest kept = of("a.safetensors");
  folder_.Write("copy.safetensors", TwoTensors("x", "y"));
  EXPECT_THAT(Texts(Compare(kept, of("copy.safetensors"))), IsEmpty());
  Damage("copy.safetensors");
  EXPECT_THAT(Texts(Compare(kept, of("copy.safetensors"))),
              ElementsAre("y in copy.safetensors: its bytes differ"));
}

TEST_F(ManifestTest, IsTheSameWithAnyNumberOfThreads) {
  EXPECT_THAT(Compare(Now(1), Now(3)), IsEmpty());
}

TEST_F(ManifestTest, FindsNothingInTheSameFiles) { EXPECT_THAT(Differences(), IsEmpty()); }

TEST_F(ManifestTest, NamesTensorAndFileOfAFlippedBit) {
  Damage("a.safetensors");
  EXPECT_THAT(Differences(), ElementsAre("y in a.safetensors: its bytes differ"));
}

TEST_F(ManifestTest, NamesAHeaderThatChangedWithoutItsTensors) {
  folder_.Write("b.safetensors", OneTensor("z", R"({"step":"2"})"));
  EXPECT_THAT(Differences(), ElementsAre(" in b.safetensors: its header differs"));
}

TEST_F(ManifestTest, NamesWhatIsGoneAndWhatIsNew) {
  std::filesystem::remove(folder_ / "b.safetensors");
  folder_.Write("c.safetensors", OneTensor("new"));
  EXPECT_THAT(
      Differences(),
      ElementsAre("z in b.safetensors: it is gone", "new in c.safetensors: it was not there",
                  " in b.safetensors: it does not belong to the source any more",
                  " in c.safetensors: it did not belong to the source"));
}

TEST_F(ManifestTest, NamesATensorOfAnotherShape) {
  folder_.Write("b.safetensors",
                FileBytes(R"({"z":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"));
  EXPECT_THAT(Differences(), ElementsAre("z in b.safetensors: its dtype or shape differs",
                                         " in b.safetensors: its header differs"));
}

TEST_F(ManifestTest, NamesAFileWhoseDigestAloneDiffers) {
  kept_.files[0].digest ^= 1;
  EXPECT_THAT(Differences(), ElementsAre(" in a.safetensors: its digest differs"));
}

TEST_F(ManifestTest, RefusesFilesThatChangeMeanwhile) {
  const CheckpointIndex index = OpenCheckpoint(folder_.path()).value();
  std::filesystem::remove(folder_ / "b.safetensors");
  folder_.Write("b.safetensors", OneTensor("z"));
  EXPECT_THAT(MakeManifest(index), FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST_F(ManifestTest, NamesAFileThatCannotBeRead) {
  const CheckpointIndex index = OpenCheckpoint(folder_.path()).value();
  std::filesystem::remove(folder_ / "b.safetensors");
  EXPECT_THAT(MakeManifest(index).status(), Says("b.safetensors"));
}

TEST_F(ManifestTest, ComesBackFromItsJson) {
  kept_.tensors[0].name = "na\"me \u00fc\n";
  ASSERT_OK_AND_ASSIGN(const Manifest back, ParseManifest(ToJson(kept_)));
  EXPECT_THAT(Compare(kept_, back), IsEmpty());
  EXPECT_EQ(back.source, kept_.source);
  EXPECT_EQ(back.files[0].bytes, kept_.files[0].bytes);
}

TEST_F(ManifestTest, OfAnotherVersionIsNotGuessedAt) {
  std::string json = ToJson(kept_);
  json.replace(json.find("\"ckptd_manifest\": 1"), 19, "\"ckptd_manifest\": 2");
  EXPECT_THAT(ParseManifest(json),
              FailsWith(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported));
}

TEST_F(ManifestTest, ThatIsNoneIsRefused) {
  const std::string json = ToJson(kept_);
  for (const std::string& text :
       {std::string("{}"), std::string("[]"), std::string("\xff"), std::string(),
        json.substr(0, json.size() / 2), std::string(100'000, '[')}) {
    EXPECT_THAT(ParseManifest(text),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
  }
  EXPECT_THAT(ParseManifest("{\"files\": nil}").status(), Says("it is no JSON near byte 11"));
}

TEST_F(ManifestTest, ThatLacksOrTwistsAValueIsRefused) {
  const std::string json = ToJson(kept_);
  for (const std::string key : {"files", "tensors", "name", "bytes", "header", "shape", "dtype"}) {
    std::string without = json;
    without.replace(without.find("\"" + key + "\""), key.size() + 2, "\"other\"");
    EXPECT_FALSE(ParseManifest(without).ok()) << key;
  }
  std::string outside = json;
  outside.replace(outside.find("\"file\": 0"), 9, "\"file\": 9");
  EXPECT_FALSE(ParseManifest(outside).ok());
}

TEST_F(ManifestTest, NamesAFolderThatIsNotUtf8ByItsUri) {
  folder_.Write("\xff/a.safetensors", OneTensor("z"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder_ / "\xff"));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, MakeManifest(index));
  EXPECT_EQ(PathOfText(manifest.source), folder_ / "\xff");
  EXPECT_EQ(ParseManifest(ToJson(manifest)).value().source, manifest.source);
}

// Half of a tensor in each of two files, one of them transposed.
class ManifestOfPieces : public ::testing::Test {
 protected:
  ManifestOfPieces() : source_(7, 40) { source_.Write(folder_.path()); }
  Manifest Now() const { return MakeManifest(source_.index, 2).value(); }
  const Manifest::Tensor& Find(const Manifest& manifest, const std::string& name) const {
    return *std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                         [&name](const Manifest::Tensor& tensor) { return tensor.name == name; });
  }

  PiecesSource source_;
  TempFolder folder_;
};

TEST_F(ManifestOfPieces, HasADigestOfEachPieceAndAllBytes) {
  const Manifest manifest = Now();
  for (const TensorEntry& entry : source_.index.tensors) {
    const Manifest::Tensor& tensor = Find(manifest, entry.name);
    ASSERT_EQ(tensor.pieces.size(), entry.pieces.size());
    EXPECT_EQ(tensor.bytes, source_.BytesOf(entry.name).size());
    for (size_t i = 0; i < entry.pieces.size(); ++i) {
      std::vector<std::byte> bytes;
      for (PieceRuns run(entry.pieces[i], entry.dtype); !run.done(); run.Next()) {
        const auto begin = source_.contents[entry.pieces[i].file].begin() +
                           static_cast<ptrdiff_t>(run.offset());
        bytes.insert(bytes.end(), begin, begin + static_cast<ptrdiff_t>(run.bytes()));
      }
      EXPECT_EQ(tensor.pieces[i].file, entry.pieces[i].file);
      EXPECT_EQ(tensor.pieces[i].digest, TensorDigest(bytes)) << entry.name;
    }
  }
}

TEST_F(ManifestOfPieces, IsReadBackAsItWasWritten) {
  const Manifest manifest = Now();
  ASSERT_OK_AND_ASSIGN(const Manifest back, ParseManifest(ToJson(manifest)));
  EXPECT_THAT(Compare(manifest, back), IsEmpty());
  for (size_t i = 0; i < back.tensors.size(); ++i) {
    EXPECT_EQ(back.tensors[i].pieces, manifest.tensors[i].pieces);
  }
}

TEST_F(ManifestOfPieces, NamesTheFileOfThePieceThatDiffers) {
  const Manifest kept = Now();
  const auto cut = std::find_if(
      source_.index.tensors.begin(), source_.index.tensors.end(), [](const TensorEntry& tensor) {
        return tensor.pieces.size() > 1 && tensor.pieces[0].file == 0 &&
               tensor.pieces[1].file == 1 && tensor.pieces[1].bytes > 0;
      });
  ASSERT_NE(cut, source_.index.tensors.end());
  Manifest now = kept;
  std::find_if(now.tensors.begin(), now.tensors.end(), [&cut](const Manifest::Tensor& tensor) {
    return tensor.name == cut->name;
  })->pieces[1].digest ^= 1;
  EXPECT_THAT(Texts(Compare(kept, now)), ElementsAre(cut->name + " in two: its bytes differ"));
}

}  // namespace
}  // namespace ckptd

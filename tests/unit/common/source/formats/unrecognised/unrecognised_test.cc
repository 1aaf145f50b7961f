// Each kind of source that is no checkpoint has a sentence of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/formats/unrecognised/format.h"
#include "tests/testing/memory_storage.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using std::string_literals::operator""s;

constexpr auto kDamaged = absl::StatusCode::kDataLoss;
constexpr auto kForeign = absl::StatusCode::kUnimplemented;
constexpr auto kMissing = absl::StatusCode::kNotFound;

absl::Status Refuse(const MemoryStorage& storage, const std::string& source) {
  const UnrecognisedFormat format;
  const Listing listing = ListSource(storage, source).value();
  EXPECT_TRUE(format.Recognise(storage, listing));
  const absl::Status why = format.Check(storage, listing);
  EXPECT_EQ(format.ReadIndex(storage, listing).status(), why);
  EXPECT_FALSE(format.StillMeans(storage, listing, {}).ok());
  EXPECT_TRUE(FactsOf(why).contains("file")) << why;
  return why;
}

struct FileCase {
  std::string bytes;
  absl::StatusCode code;
  std::string says;
};

void PrintTo(const FileCase& one, std::ostream* out) { *out << one.says; }

class UnrecognisedFile : public testing::TestWithParam<FileCase> {};
TEST_P(UnrecognisedFile, IsNamed) {
  MemoryStorage storage;
  storage.Write("/a/file", GetParam().bytes);
  const absl::Status why = Refuse(storage, "/a/file");
  const bool is_damaged = GetParam().code == kDamaged;
  EXPECT_THAT(why, FailsWith(GetParam().code,
                             is_damaged ? reason::kSourceInvalid : reason::kSourceUnsupported));
  EXPECT_THAT(why, Says(GetParam().says));
  EXPECT_EQ(FactsOf(why)["file"], "/a/file");
}

// The record that ends a zip file of one record, and its record in the directory.
std::string ZipOf(const std::string& name) {
  const std::string length = {static_cast<char>(name.size()), '\0'};
  const std::string local = "PK\x03\x04"s + std::string(22, '\0') + length + "\0\0"s + name;
  const std::string central =
      "PK\x01\x02"s + std::string(24, '\0') + length + std::string(16, '\0') + name;
  const auto number = [](size_t value) {
    return std::string{static_cast<char>(value), '\0', '\0', '\0'};
  };
  return local + central + "PK\x05\x06"s + "\0\0\0\0\1\0\1\0"s + number(central.size()) +
         number(local.size()) + "\0\0"s;
}

std::string Padded(std::string bytes, size_t at, std::string_view more) {
  bytes.resize(at);
  return bytes + std::string(more) + std::string(300, '\0');
}

INSTANTIATE_TEST_SUITE_P(
    Files, UnrecognisedFile,
    testing::Values(
        FileCase{"", kDamaged, "it is empty"},  //
        FileCase{std::string(5000, '\0'), kDamaged, "it is zeros at its beginning"},
        FileCase{"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n", kDamaged,
                 "a Git LFS pointer"},
        FileCase{"\n <!DOCTYPE HTML>\n<html>", kDamaged, "an HTML page"},
        FileCase{"<html><body>404", kDamaged, "an HTML page"},
        FileCase{"<?xml version=\"1.0\"?><Error><Code>AccessDenied", kDamaged,
                 "an XML message (<?xml version"},
        FileCase{"{\"error\":\n\"gated\"}", kDamaged, "JSON ({\"error\":\\n\"gated\"})"},
        FileCase{"\xef\xbb\xbf[1, 2]", kDamaged, "JSON ([1, 2])"},  //
        FileCase{"Not found", kDamaged, "text (Not found)"},
        FileCase{"\x01\x02\x03", kDamaged, "no checkpoint of a format that is read, of 3 bytes"},
        FileCase{"PK\x03\x04 and a half of the file", kDamaged,
                 "cut after 27 bytes; finish the download"},
        FileCase{ZipOf("arr_0.npy"), kForeign, "NumPy arrays (.npz)"},
        FileCase{ZipOf("m/constants.pkl"), kForeign, "TorchScript"},
        FileCase{ZipOf("model.weights.h5"), kForeign, "a Keras model"},
        FileCase{ZipOf("readme.txt"), kForeign, "a zip archive of 1 files, first \"readme.txt\""},
        FileCase{"\x1f\x8b\x08 and more", kForeign, "compressed (gzip); unpack it"},
        FileCase{"\x28\xb5\x2f\xfd and more", kForeign, "compressed (zstd)"},
        FileCase{Padded("a.txt", 257, "ustar"), kForeign, "an archive (tar)"},
        FileCase{"\x93NUMPY\x01\x00"s, kForeign, "a NumPy array"},
        FileCase{"\x89HDF\r\n\x1a\n and more", kForeign, "an HDF5 file"},
        FileCase{"\x82\xa6params\x81\xa1w", kForeign, "msgpack, as Flax writes it"},
        FileCase{"\xde\x00\x10\xd9\x03"
                 "abc"s,
                 kForeign, "msgpack, as Flax writes it"},
        FileCase{"\x08\x07\x12\x07pytorch\x1a\x05", kForeign, "an ONNX model"},
        FileCase{"\x01\x00 blocks \x57\xfb\x80\x8b\x24\x75\x47\xdb"s, kForeign,
                 "an index of TensorFlow's checkpoints"},
        FileCase{"\x80\x04}\x94\x8c\x01"
                 "aK\x01s."s,
                 kForeign, "a pickle, and not of torch.save"},
        FileCase{"\x80\x02"
                 "cargparse\nNamespace\n)R}b."s,
                 kForeign, "a pickle of argparse.Namespace, and not"},
        FileCase{"(dp0\nS'lr'\np1\nF0.1\ns.", kForeign, "a pickle, and not of torch.save"},
        FileCase{"\x80\x04"
                 "ctorch.storage\n_load_from_bytes\nC\x01x\x85R."s,
                 kForeign, "tensors in a pickle"},
        FileCase{"\x80\x04\x95", kDamaged, "reading /a/file: its pickle is damaged at byte 2"}));

TEST(Unrecognised, PicklesThatWouldExecuteAreRefusedAsSuch) {
  MemoryStorage storage;
  for (const char* pickle : {"\x80\x02"
                             "cos\nsystem\n(K\x01tR.",
                             "cos\nsystem\n(Vid\ntR.", "cos\nsystem\n(Vid\ntR.more"}) {
    storage.Write("/a/file", pickle);
    const absl::Status why = Refuse(storage, "/a/file");
    EXPECT_THAT(why, FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceUnsafe));
    EXPECT_THAT(why, Says("reading /a/file: its pickle would run os.system"));
  }
}

struct FolderCase {
  std::vector<std::string> files;
  absl::StatusCode code;
  std::string says;
};

void PrintTo(const FolderCase& one, std::ostream* out) { *out << one.says; }

class UnrecognisedFolder : public testing::TestWithParam<FolderCase> {};
TEST_P(UnrecognisedFolder, IsNamed) {
  MemoryStorage storage;
  for (const std::string& file : GetParam().files) storage.Write("/a/" + file, "x");
  const absl::Status why = Refuse(storage, "/a");
  const bool is_missing = GetParam().code == kMissing;
  EXPECT_THAT(why, FailsWith(GetParam().code,
                             is_missing ? reason::kSourceNotFound : reason::kSourceUnsupported));
  EXPECT_THAT(why, Says(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Folders, UnrecognisedFolder,
    testing::Values(
        FolderCase{{"config.json"},
                   kMissing,
                   "this folder holds no checkpoint, but \"config.json\"; name a file"},
        FolderCase{{"__0_0.distcp", "__1_0.distcp"},
                   kMissing,
                   "it lacks \".metadata\"; the save did not finish, or another node"},
        FolderCase{
            {".metadata.tmp", "__0_0.distcp"}, kMissing, "as its .metadata.tmp is still there"},
        FolderCase{{"blobs/x", "snapshots/abc/config.json"}, kMissing, "snapshots/<revision>"},
        FolderCase{{"checkpoint-5/model.safetensors", "logs/x", "readme.md"},
                   kMissing,
                   "name the one below that holds them: checkpoint-5"},
        FolderCase{
            {"tf_model.h5", "config.json"}, kForeign, "it holds \"tf_model.h5\", a file of Keras"},
        FolderCase{{"variables/v.index", "saved_model.pb"},
                   kForeign,
                   "\"saved_model.pb\", a file of TensorFlow"},
        FolderCase{{".zgroup", "layer/.zarray"}, kForeign, "a file of zarr"},
        FolderCase{{"flax_model.msgpack"}, kForeign, "a file of Flax"},
        FolderCase{{"model.onnx"}, kForeign, "a file of ONNX"}));

}  // namespace
}  // namespace ckptd

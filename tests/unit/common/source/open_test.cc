#include "common/source/open.h"
#include "common/source/registry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/source/safetensors/file.h"
#include "common/source/path_text.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/common/source/file_bytes.h"
#include "tests/unit/common/source/open_helpers.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

// ---- One file.

TEST(OpenCheckpoint, ReadsASingleFile) {
  const TempFolder folder;
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
      R"("b":{"dtype":"I32","shape":[],"data_offsets":[0,4]}})";
  const std::string path = folder.Write("m.safetensors", FileBytes(json, std::string(28, 'x')));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(path));
  EXPECT_EQ(index.source, path);
  EXPECT_THAT(NamesOf(index), ElementsAre("b", "w"));
  EXPECT_THAT(index.metadata, ElementsAre(Pair("format", "pt")));
  const Piece& piece = index.tensors[1].pieces.at(0);
  EXPECT_EQ(piece.offset, 8 + json.size() + 4);
  EXPECT_EQ(piece.bytes, 24U);
  EXPECT_THAT(piece.box.offsets, ElementsAre(0, 0));
  EXPECT_THAT(piece.box.extents, ElementsAre(2, 3));
  EXPECT_EQ(index.files.at(0).header_hash, Xxh3(json));
}

TEST(OpenCheckpoint, StatesTheIdentityOfTheFile) {
  const TempFolder folder;
  const std::string path = folder.Write("m.safetensors", OneTensor("a"));
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(path));
  const SourceFile& file = index.files.at(0);
  EXPECT_EQ(file.path, path);
  EXPECT_EQ(file.bytes, static_cast<uint64_t>(info.st_size));
  EXPECT_EQ(file.host, std::to_string(info.st_dev));
  EXPECT_EQ(file.object, std::to_string(info.st_ino));
  EXPECT_EQ(file.mtime_ns, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec);
  EXPECT_EQ(file.version,
            std::to_string(info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec));
}

TEST(OpenCheckpoint, ReadsAHeaderLongerThanItsFirstRead) {
  const TempFolder folder;
  std::string json = "{";
  for (int i = 0; i < 3000; ++i) {
    json +=
        fmt::format(R"("t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}},)", i, i, i + 1);
  }
  json.back() = '}';
  ASSERT_GT(json.size(), size_t{64 * 1024});
  const std::string path = folder.Write("m.safetensors", FileBytes(json, std::string(3000, 'x')));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(path));
  EXPECT_EQ(index.tensors.size(), 3000U);
  EXPECT_EQ(index.files[0].header_hash, Xxh3(json));
}

TEST(OpenCheckpoint, NamesFileAndTensorOfABrokenHeader) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "m.safetensors", FileBytes(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"));
  const auto index = OpenCheckpoint(path);
  EXPECT_THAT(index, FailsWith(kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(index, Says("reading the header of " + path + ": InvalidOffset: tensor \"w\""));
  EXPECT_THAT(FactsOf(index.status()),
              ElementsAre(Pair("error", "InvalidOffset"), Pair("file", path), Pair("tensor", "w")));
}

TEST(OpenCheckpoint, RefusesAnEmptyFile) {
  const TempFolder folder;
  EXPECT_THAT(OpenCheckpoint(folder.Write("m.safetensors", "")), Says("HeaderTooSmall"));
}

TEST(OpenCheckpoint, SaysThatAPathDoesNotExist) {
  const TempFolder folder;
  const auto index = OpenCheckpoint(folder / "none.safetensors");
  EXPECT_THAT(index, FailsWith(kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(index, Says("check the path"));
}

TEST(Recognise, SaysOfWhatCannotBeLoadedWhatOpeningItWould) {
  const TempFolder folder;
  folder.Write("pickles/pytorch_model.bin", "PK");
  folder.Write("dcp/.metadata", "x");
  folder.Write("broken.safetensors", "no header");
  folder.Write("weights.bin", "PK");
  fs::create_directories(folder / "empty");
  for (const char* source : {"none", "pickles", "dcp", "broken.safetensors", "weights.bin", "empty"}) {
    const absl::Status status = Recognise(folder / source);
    EXPECT_FALSE(status.ok()) << source;
    EXPECT_EQ(status, OpenCheckpoint(folder / source).status()) << source;
  }
  folder.Write("good/model.safetensors", OneTensor("x"));
  EXPECT_OK(Recognise(folder / "good/"));
  EXPECT_OK(Recognise(folder / "good/model.safetensors"));
}

TEST(OpenCheckpoint, SaysWhereADeadLinkLeads) {
  const TempFolder folder;
  fs::create_symlink("../blobs/0123", folder / "m.safetensors");
  const auto index = OpenCheckpoint(folder / "m.safetensors");
  EXPECT_THAT(index, FailsWith(kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(index, Says("a link to ../blobs/0123, which does not exist"));
}

TEST(OpenCheckpoint, RefusesLinksThatLeadInACircle) {
  const TempFolder folder;
  fs::create_symlink("m.safetensors", folder / "m.safetensors");
  EXPECT_THAT(OpenCheckpoint(folder / "m.safetensors"),
              FailsWith(kInvalid, reason::kSourceInvalid));
}

TEST(OpenCheckpoint, RefusesAFifoWithoutWaitingForAWriter) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "m.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(OpenCheckpoint(folder / "m.safetensors"), Says("it is a pipe (FIFO)"));
}

TEST(OpenCheckpoint, RefusesADevice) {
  EXPECT_THAT(OpenCheckpoint("/dev/zero"), Says("it is a device"));
}

TEST(OpenObject, RefusesADeviceWithoutOpeningIt) {
  EXPECT_THAT(OpenObject("/dev/null"), FailsWith(kInvalid, reason::kSourceInvalid));
}

TEST(OpenCheckpoint, RefusesAFifoInPlaceOfAnIndex) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "model.safetensors.index.json").c_str(), 0600), 0);
  EXPECT_THAT(OpenCheckpoint(folder.path()), FailsWith(kInvalid, reason::kSourceInvalid));
}

TEST(OpenCheckpoint, RefusesAnEmptyPathAndOneWithNul) {
  EXPECT_THAT(OpenCheckpoint(""), FailsWith(kInvalid, reason::kSourceInvalid));
  EXPECT_THAT(OpenCheckpoint(std::string("/a\0b", 4)), FailsWith(kInvalid, reason::kSourceInvalid));
  EXPECT_THAT(OpenCheckpoint("file:///a%00b"), FailsWith(kInvalid, reason::kSourceInvalid));
}

TEST(OpenCheckpoint, TakesNamesThatAreNotUtf8) {
  const TempFolder folder;
  const std::string path = folder.Write("m\xff.safetensors", OneTensor("a"));
  const std::string other = folder.Write("\xff/m.safetensors", OneTensor("a"));
  const std::string uri = TextOfPath(path);
  ASSERT_NE(uri, path);
  for (const std::string& source : {path, other, folder.path(), uri}) {
    EXPECT_OK(OpenCheckpoint(source).status());
  }
}

TEST(OpenCheckpoint, RefusesAPathLongerThanTheSystemAllows) {
  EXPECT_THAT(OpenCheckpoint("/" + std::string(10'000, 'a')),
              FailsWith(kInvalid, reason::kSourceInvalid));
}

TEST(OpenCheckpoint, MakesARelativePathAbsolute) {
  const TempFolder folder;
  folder.Write("m.safetensors", OneTensor("a"));
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const auto index = OpenCheckpoint("m.safetensors");
  fs::current_path(before);
  ASSERT_OK(index);
  EXPECT_EQ(index->source, folder / "m.safetensors");
  EXPECT_EQ(index->files[0].path, folder / "m.safetensors");
}

TEST(OpenCheckpoint, ReadsNamesWithSpacesAndOtherScripts) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "m\xc3\xb6"
      "del \xe6\xa8\xa1 1.safetensors",
      OneTensor("a b"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(path));
  EXPECT_EQ(index.files[0].path, path);
}

TEST(OpenCheckpoint, ReadsAFileWithoutAnExtensionAsABlobHas) {
  const TempFolder folder;
  EXPECT_OK(OpenCheckpoint(folder.Write("0123abcd", OneTensor("a"))));
}

// ---- Folders.

TEST(OpenCheckpoint, ReadsAllFilesOfAFolderInNameOrder) {
  const TempFolder folder;
  folder.Write("b.safetensors", OneTensor("x", R"({"k":"from b","only b":"1"})"));
  folder.Write("a.safetensors", OneTensor("y", R"({"k":"from a"})"));
  folder.Write(".hidden.safetensors", "not one");
  folder.Write("config.json", "{}");
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  ASSERT_EQ(index.files.size(), 2U);
  EXPECT_EQ(index.files[0].path, folder / "a.safetensors");
  EXPECT_THAT(NamesOf(index), ElementsAre("x", "y"));
  EXPECT_EQ(FileOf(index, "x"), folder / "b.safetensors");
  EXPECT_THAT(index.metadata, ElementsAre(Pair("k", "from a"), Pair("only b", "1")));
}

TEST(CheckUnchanged, NoticesAnIndexThatNamesOtherFiles) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  folder.Write("b.safetensors", OneTensor("x"));
  folder.Write("model.safetensors.index.json", IndexOf(R"("x":"a.safetensors")"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  EXPECT_OK(CheckUnchanged(index));
  // As an atomic swap does: written beside, then renamed.
  folder.Write("new", IndexOf(R"("x":"b.safetensors")"));
  fs::rename(folder / "new", folder / "model.safetensors.index.json");
  EXPECT_THAT(CheckUnchanged(index), FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST(CheckUnchanged, NoticesAFileThatJoinsAFolderWithoutAnIndex) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  ASSERT_OK_AND_ASSIGN(CheckpointIndex index, OpenCheckpoint(folder.path()));
  index.source += "/";
  folder.Write("notes.txt", "not one");
  EXPECT_OK(CheckUnchanged(index));
  folder.Write("b.safetensors", OneTensor("y"));
  EXPECT_THAT(CheckUnchanged(index), FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST(OpenCheckpoint, IgnoresTrailingSlashes) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path() + "//"));
  EXPECT_EQ(index.source, folder.path());
}

TEST(CheckUnchanged, NoticesAnotherIndexThatCountsInstead) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  folder.Write("b.safetensors", OneTensor("x"));
  folder.Write("foo.safetensors.index.json", R"({"weight_map":{"x":"a.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(folder.path()));
  ASSERT_OK(CheckUnchanged(index));
  const std::string usual =
      folder.Write("model.safetensors.index.json", R"({"weight_map":{"x":"b.safetensors"}})");
  EXPECT_THAT(CheckUnchanged(index), FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
  EXPECT_THAT(CheckUnchanged(index), Says("other files of that folder count now"));
  fs::rename(usual, folder / "other.safetensors.index.json");
  EXPECT_THAT(CheckUnchanged(index), Says("other files of that folder count now")) << "neither does";
}

TEST(OpenCheckpoint, FollowsTheLinksOfAHuggingFaceSnapshot) {
  const TempFolder folder;
  folder.Write("blobs/111", OneTensor("x"));
  folder.Write("blobs/222", OneTensor("y"));
  folder.Write("blobs/333", IndexOf(R"("x":"model-00001-of-00002.safetensors",)"
                                    R"("y":"model-00002-of-00002.safetensors")"));
  const std::string snapshot = folder / "snapshots/abc";
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/111", snapshot + "/model-00001-of-00002.safetensors");
  fs::create_symlink("../../blobs/222", snapshot + "/model-00002-of-00002.safetensors");
  fs::create_symlink("../../blobs/333", snapshot + "/model.safetensors.index.json");
  for (const std::string& source : {snapshot, snapshot + "/model.safetensors.index.json"}) {
    ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(source));
    EXPECT_THAT(NamesOf(index), ElementsAre("x", "y"));
    EXPECT_EQ(FileOf(index, "y"), snapshot + "/model-00002-of-00002.safetensors");
  }
  EXPECT_THAT(OpenCheckpoint(folder.path()),
              AllOf(FailsWith(kNotFound, reason::kSourceNotFound), Says("snapshots/<revision>")));
}

TEST(OpenCheckpoint, NamesTheMissingFileOfASeriesWithoutIndex) {
  const TempFolder folder;
  folder.Write("m-00001-of-00003.safetensors", OneTensor("x"));
  folder.Write("m-00003-of-00003.safetensors", OneTensor("y"));
  EXPECT_THAT(OpenCheckpoint(folder.path()),
              AllOf(FailsWith(kNotFound, reason::kSourceNotFound),
                    Says("it lacks \"m-00002-of-00003.safetensors\"")));
}

TEST(OpenCheckpoint, AcceptsACompleteSeriesFromOneOrFromZero) {
  const TempFolder folder;
  folder.Write("m-00001-of-00002.safetensors", OneTensor("a"));
  folder.Write("m-00002-of-00002.safetensors", OneTensor("b"));
  folder.Write("n-00000-of-00002.safetensors", OneTensor("c"));
  folder.Write("n-00001-of-00002.safetensors", OneTensor("d"));
  EXPECT_OK(OpenCheckpoint(folder.path()));
}

TEST(OpenCheckpoint, SaysThatAFolderHoldsNoCheckpoint) {
  const TempFolder folder;
  folder.Write("config.json", "{}");
  EXPECT_THAT(OpenCheckpoint(folder.path()), AllOf(FailsWith(kNotFound, reason::kSourceNotFound),
                                                   Says("this folder holds no checkpoint, but \"config.json\"")));
}

class ForeignName : public ::testing::TestWithParam<std::string> {};
TEST_P(ForeignName, IsNoReasonToRefuseASafetensorsFile) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index,
                       OpenCheckpoint(folder.Write(GetParam(), OneTensor("x"))));
  EXPECT_THAT(NamesOf(index), ElementsAre("x"));
}
INSTANTIATE_TEST_SUITE_P(Formats, ForeignName,
                         ::testing::Values("a.bin", "a.pt", "a.pth", "a.ckpt", "a.gguf",
                                           "__0_0.distcp", ".metadata"));

// ---- Descriptors and changes.

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(OpenCheckpoint, LeavesNoDescriptorOpen) {
  const TempFolder folder;
  folder.Write("a.safetensors", OneTensor("x"));
  const std::string broken = folder.Write("sub/b.safetensors", "broken");
  const size_t before = OpenDescriptors();
  EXPECT_OK(OpenCheckpoint(folder.path()));
  EXPECT_FALSE(OpenCheckpoint(broken).ok());
  EXPECT_EQ(OpenDescriptors(), before);
}

// ---- Parts.

TEST(OpenCheckpoint, TakesAPartThatTheFormatHas) {
  const TempFolder folder;
  folder.Write("model.safetensors", OneTensor("a"));
  for (const std::string& path : {folder.path(), folder.path() + "/model.safetensors"}) {
    ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(path + "#model"));
    EXPECT_EQ(index.source, path + "#model");
    EXPECT_EQ(index.part, "model");
    EXPECT_EQ(index.path(), path);
    EXPECT_OK(CheckUnchanged(index));
    EXPECT_OK(Recognise(index.source));
  }
}

TEST(OpenCheckpoint, NamesThePartsThereAre) {
  const TempFolder folder;
  const std::string path = folder.Write("m.safetensors", OneTensor("a"));
  const absl::Status status = OpenCheckpoint(path + "#optimizer").status();
  EXPECT_THAT(status, FailsWith(kInvalid, reason::kSourceInvalid));
  EXPECT_THAT(status, Says("it has no part \"optimizer\"; name one that it has (#model)"));
  EXPECT_EQ(FactsOf(status)["file"], path);
  EXPECT_EQ(Recognise(path + "#optimizer").code(), kInvalid);
}

TEST(OpenCheckpoint, TakesAFileWhoseNameHoldsAHashAsAWhole) {
  const TempFolder folder;
  folder.Write("m", OneTensor("of the part"));
  const std::string path = folder.Write("m#model", OneTensor("of the file"));
  ASSERT_OK_AND_ASSIGN(const CheckpointIndex index, OpenCheckpoint(path));
  EXPECT_THAT(NamesOf(index), ElementsAre("of the file"));
  EXPECT_EQ(index.part, "");
  EXPECT_EQ(index.path(), path);
  EXPECT_THAT(OpenCheckpoint(folder.path() + "/none#model").status(),
              FailsWith(kNotFound, reason::kSourceNotFound));
}

class CheckUnchangedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = folder_.Write("a.safetensors", OneTensor("x"));
    ASSERT_OK_AND_ASSIGN(index_, OpenCheckpoint(path_));
  }
  void ExpectChanged(const std::string& how) {
    const absl::Status status = CheckUnchanged(index_);
    EXPECT_THAT(status, FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
    EXPECT_THAT(status, Says(how));
    EXPECT_EQ(FactsOf(status)["file"], path_);
  }
  TempFolder folder_;
  std::string path_;
  CheckpointIndex index_;
};

TEST_F(CheckUnchangedTest, IsContentWithAFileThatIsTheSame) { EXPECT_OK(CheckUnchanged(index_)); }

std::chrono::system_clock::time_point At(int64_t nanoseconds) {
  return std::chrono::system_clock::time_point(std::chrono::nanoseconds(nanoseconds));
}

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMillisecond;

TEST(UnsettledFor, IsTheRestOfTheTickInWhichAFileWasWritten) {
  CheckpointIndex index;
  index.files = {{"/a", 1, "3", std::to_string(7 * kSecond + 1), "2", 5 * kSecond}};
  EXPECT_EQ(UnsettledFor(index, At(7 * kSecond + 1 + 5 * kMillisecond)).count(), 15 * kMillisecond);
  EXPECT_EQ(UnsettledFor(index, At(7 * kSecond + 1 + 20 * kMillisecond)).count(), 0);
  EXPECT_EQ(UnsettledFor(index, At(6 * kSecond)).count(), 0) << "the clock of another machine";
  index.files[0].mtime_ns = 99 * kSecond;
  EXPECT_EQ(UnsettledFor(index, At(7 * kSecond + 1)).count(), 20 * kMillisecond) << "a set time";
  index.files.push_back({"/b", 1, "4", std::to_string(7 * kSecond), "2", 5 * kSecond});
  EXPECT_EQ(UnsettledFor(index, At(8 * kSecond)).count(), 1'100 * kMillisecond)
      << "times of whole seconds";
}

TEST(OpenSettledCheckpoint, ReadsFilesOnlyOnceALaterWriteMustShow) {
  const TempFolder folder;
  const std::string path = folder.Write("m.safetensors", OneTensor("a"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, OpenSettledCheckpoint(path));
  const CheckpointIndex& index = opened.index;
  EXPECT_EQ(UnsettledFor(index, std::chrono::system_clock::now()).count(), 0);
  EXPECT_OK(CheckUnchanged(index));
}

TEST(OpenCheckpoint, RemarksOnKeysThatAHeaderStatesTwice) {
  const TempFolder folder;
  const std::string path = folder.Write(
      "m.safetensors", FileBytes(R"({"__metadata__":{"k":"1","k":"2","once":""},)"
                                 R"("a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                                 R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                 "x"));
  ASSERT_OK_AND_ASSIGN(const OpenedCheckpoint opened, OpenWithRemarks(path));
  EXPECT_EQ(opened.index.Find("a")->dtype, Dtype::kU8);
  const std::string header = "the header of " + path + " says more than once what 1 of its ";
  EXPECT_THAT(opened.remarks,
              testing::ElementsAre(header + "tensors are, and the last one counts: \"a\"",
                                   header + "metadata keys are, and the last one counts: \"k\""));
}

TEST_F(CheckUnchangedTest, NoticesANewSize) {
  ASSERT_EQ(::truncate(path_.c_str(), 5), 0);
  ExpectChanged("its size changed");
}

TEST_F(CheckUnchangedTest, NoticesANewModificationTime) {
  const struct timeval times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimes(path_.c_str(), times), 0);
  ExpectChanged("it was written to");
}

TEST_F(CheckUnchangedTest, NoticesAWriterWhoSetsTheModificationTimeBack) {
  struct stat before = {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  const auto time = fs::last_write_time(path_);
  struct stat now = before;
  // Clocks of file systems tick in milliseconds: within one, nothing would show.
  while (now.st_ctim.tv_nsec == before.st_ctim.tv_nsec) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
    file.close();
    fs::last_write_time(path_, time);
    ASSERT_EQ(::stat(path_.c_str(), &now), 0);
  }
  ExpectChanged("its time set back");
}

TEST_F(CheckUnchangedTest, NoticesThatAnotherFileTookItsPlace) {
  const std::string other = folder_.Write("other", OneTensor("x"));
  fs::last_write_time(other, fs::last_write_time(path_));
  fs::rename(other, path_);
  ExpectChanged("it was replaced");
}

TEST_F(CheckUnchangedTest, NoticesThatTheFileIsGone) {
  fs::remove(path_);
  ExpectChanged("it was removed");
}

}  // namespace
}  // namespace ckptd

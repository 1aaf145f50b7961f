#include "common/export/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/export/output_file.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TargetTest : public ::testing::Test {
 protected:
  static void Fill(const Target& target, const std::string& name, const std::string& text) {
    auto out = OutputFile::Create(target.PathOf(name));
    ASSERT_TRUE(out.ok()) << out.status();
    ASSERT_TRUE(out->Append(text).ok());
    ASSERT_TRUE(out->Finish().ok());
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  TempFolder dir_;
};

TEST_F(TargetTest, IsThereOnceItIsCommitted) {
  auto target = Target::Create(dir_ / "out/", Target::Kind::kFolder, 10);
  ASSERT_TRUE(target.ok()) << target.status();
  Fill(*target, "a", "1");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  ASSERT_TRUE(target->Commit().ok());
  EXPECT_EQ(fs::file_size(dir_ / "out/a"), 1u);
  EXPECT_THAT(Names(), ::testing::ElementsAre("out"));
}

TEST_F(TargetTest, IsAFileToo) {
  {
    auto target = Target::Create(dir_ / "m.bin", Target::Kind::kFile, 0);
    ASSERT_TRUE(target.ok()) << target.status();
    Fill(*target, "m.bin", "new");
    ASSERT_TRUE(target->Commit().ok());
  }
  EXPECT_THAT(Names(), ::testing::ElementsAre("m.bin"));
  EXPECT_EQ(fs::file_size(dir_ / "m.bin"), 3u);
}

TEST_F(TargetTest, LeavesNothingUnlessItIsCommitted) {
  {
    auto target = Target::Create(dir_ / "out", Target::Kind::kFolder, 0);
    Fill(*target, "a", "1");
  }
  EXPECT_TRUE(Names().empty());
}

TEST_F(TargetTest, RemovesWhatAKilledRunLeft) {
  fs::create_directories(dir_ / ".out.ckptd-partial/deep");
  dir_.Write(".out.ckptd-partial/old", "old");
  auto target = Target::Create(dir_ / "out", Target::Kind::kFolder, 0);
  ASSERT_TRUE(target.ok()) << target.status();
  Fill(*target, "new", "1");
  ASSERT_TRUE(target->Commit().ok());
  EXPECT_FALSE(fs::exists(dir_ / "out/old"));
  EXPECT_TRUE(fs::exists(dir_ / "out/new"));
}

TEST_F(TargetTest, IsOfOneWriterAtATime) {
  auto first = Target::Create(dir_ / "out", Target::Kind::kFolder, 0);
  ASSERT_TRUE(first.ok());
  Fill(*first, "a", "1");
  const auto second = Target::Create(dir_ / "out", Target::Kind::kFolder, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_EQ(ReasonOf(second.status()), reason::kTargetInvalid);
  EXPECT_TRUE(first->Commit().ok());
}

TEST_F(TargetTest, ReplacesNothingUnlessItIsTold) {
  dir_.Write("m.bin", "old");
  fs::create_directory(dir_ / "full");
  dir_.Write("full/x", "");
  const auto file = Target::Create(dir_ / "m.bin", Target::Kind::kFile, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(file.status())) << file.status();
  const auto folder = Target::Create(dir_ / "full", Target::Kind::kFolder, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(folder.status())) << folder.status();
  EXPECT_THAT(MessageOf(folder.status()), HasSubstr("not empty"));
  auto replaced = Target::Create(dir_ / "m.bin", Target::Kind::kReplaced, 0);
  ASSERT_TRUE(replaced.ok());
  Fill(*replaced, "m.bin", "newer");
  EXPECT_EQ(fs::file_size(dir_ / "m.bin"), 3u);
  ASSERT_TRUE(replaced->Commit().ok());
  EXPECT_EQ(fs::file_size(dir_ / "m.bin"), 5u);
}

TEST_F(TargetTest, TakesTheRoomOfAnEmptyFolder) {
  fs::create_directory(dir_ / "out");
  auto target = Target::Create(dir_ / "out", Target::Kind::kFolder, 0);
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE(target->Commit().ok());
  EXPECT_THAT(Names(), ::testing::ElementsAre("out"));
}

TEST_F(TargetTest, SaysBeforehandThatThereIsNoRoom) {
  const auto target = Target::Create(dir_ / "out", Target::Kind::kFolder, uint64_t{1} << 62);
  EXPECT_TRUE(absl::IsResourceExhausted(target.status())) << target.status();
  EXPECT_TRUE(Names().empty());
}

TEST_F(TargetTest, NamesAFolderAboveThatIsNotThere) {
  const auto target = Target::Create(dir_ / "none/out", Target::Kind::kFolder, 0);
  EXPECT_TRUE(absl::IsNotFound(target.status())) << target.status();
  EXPECT_THAT(MessageOf(target.status()), HasSubstr("none/out"));
}

class OutputFileTest : public TargetTest {
 protected:
  std::string Read(const std::string& name) { return ReadSmallFile(dir_ / name, 1 << 28).value(); }
};

TEST_F(OutputFileTest, KeepsSmallAndLargePiecesInOrder) {
  auto out = OutputFile::Create(dir_ / "f").value();
  const std::string large(3 << 20, 'x');
  ASSERT_TRUE(out.Append("a").ok());
  ASSERT_TRUE(out.Append(large).ok());
  ASSERT_TRUE(out.Append("b").ok());
  EXPECT_EQ(out.size(), large.size() + 2);
  ASSERT_TRUE(out.WriteAt(0, "A").ok());
  ASSERT_TRUE(out.WriteAt(large.size() + 1, "B").ok());
  ASSERT_TRUE(out.Finish().ok());
  EXPECT_EQ(Read("f"), "A" + large + "B");
}

TEST_F(OutputFileTest, LeavesZerosForWhatIsSkipped) {
  auto out = OutputFile::Create(dir_ / "f").value();
  ASSERT_TRUE(out.Skip(3).ok());
  ASSERT_TRUE(out.Append("b").ok());
  ASSERT_TRUE(out.Skip(2).ok());
  ASSERT_TRUE(out.Finish().ok());
  EXPECT_EQ(Read("f"), std::string("\0\0\0b\0\0", 6));
}

}  // namespace
}  // namespace ckptd

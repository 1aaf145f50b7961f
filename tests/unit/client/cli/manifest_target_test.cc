// Where `verify --write-manifest` writes, and what it must not change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <set>

#include "tests/testing/temp_folder.h"
#include "tests/unit/client/cli/cli_fixture.h"

namespace ckptd::cli {
namespace {

using ::testing::HasSubstr;

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ManifestTarget : public ::testing::Test {
 protected:
  ManifestTarget() : model_(dir_ / "model.safetensors") {
    WriteTinyModel(model_);
    before_ = BytesOf(model_);
  }

  Outcome Write(const std::string& target) {
    return run_({"verify", model_, "--write-manifest", target});
  }

  void ExpectRefused(const std::string& target, const std::string& why) {
    const std::set<std::string> names = Names();
    const Outcome outcome = Write(target);
    EXPECT_EQ(outcome.code, kExitUsage) << target;
    EXPECT_THAT(outcome.err, HasSubstr(why)) << target;
    EXPECT_EQ(BytesOf(model_), before_) << target;
    EXPECT_EQ(Names(), names) << target;
  }

  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "")) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  TempFolder dir_;
  std::string model_;
  std::string before_;
  Runner run_;
};

TEST_F(ManifestTarget, MayNotBeAFileOfTheSourceByAnyName) {
  std::filesystem::create_symlink(model_, dir_ / "link.json");
  std::filesystem::create_hard_link(model_, dir_ / "hard.json");
  for (const char* name : {"model.safetensors", "link.json", "hard.json"}) {
    ExpectRefused(dir_ / name, "it is one of the files that the manifest is of");
  }
}

TEST_F(ManifestTarget, MayNotBeTheIndexThatNamesTheSource) {
  const std::string index = dir_ / "model.safetensors.index.json";
  WriteFile(index, R"({"weight_map": {"model.a.weight": "model.safetensors",)"
                   R"("model.\u001b[31m": "model.safetensors", "step": "model.safetensors"}})");
  const std::string text = BytesOf(index);
  EXPECT_EQ(run_({"verify", index, "--write-manifest", index}).code, kExitUsage);
  EXPECT_EQ(BytesOf(index), text);
}

TEST_F(ManifestTarget, IsARegularFileOrANewOne) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/nowhere/m.json", dir_ / "dangling.json");
  ExpectRefused("/dev/null", "it is a device");
  ExpectRefused(dir_ / "pipe", "it is a pipe");
  ExpectRefused(dir_ / "", "it is a directory");
  ExpectRefused(dir_ / "dangling.json", "a link that leads nowhere");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(ManifestTarget, HasNoNameOfAPartOfTheCheckpoint) {
  for (const char* name : {"other.safetensors", "x.safetensors.index.json"}) {
    ExpectRefused(dir_ / name, "it would be taken for a part of the checkpoint");
  }
}

TEST_F(ManifestTarget, ReplacesTheFileThatALinkNames) {
  std::filesystem::create_directory(dir_ / "kept");
  WriteFile(dir_ / "kept/m.json", "an older one");
  std::filesystem::create_symlink("kept/m.json", dir_ / "m.json");
  EXPECT_EQ(Write(dir_ / "m.json").code, kExitFine);
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "m.json"));
  EXPECT_THAT(BytesOf(dir_ / "kept/m.json"), HasSubstr("\"ckptd_manifest\": 1"));
}

TEST_F(ManifestTarget, IsWrittenBesideUnderANameThatNobodyKnows) {
  WriteFile(dir_ / "precious", "mine");
  std::filesystem::create_symlink("precious", dir_ / "m.json.part");
  EXPECT_EQ(Write(dir_ / "m.json").code, kExitFine);
  EXPECT_EQ(BytesOf(dir_ / "precious"), "mine");
  EXPECT_EQ(Names(),
            (std::set<std::string>{"m.json", "m.json.part", "model.safetensors", "precious"}));
}

TEST_F(ManifestTarget, LeavesNothingBesideItWhenItCannotBeWritten) {
  const Outcome outcome = Write(dir_ / std::string(300, 'm'));  // longer than a file name may be
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_EQ(Names(), std::set<std::string>{"model.safetensors"});
}

TEST_F(ManifestTarget, HasTheModeOfAnyNewFile) {
  const mode_t before = ::umask(0027);
  EXPECT_EQ(Write(dir_ / "m.json").code, kExitFine);
  ::umask(before);
  struct stat found = {};
  ASSERT_EQ(::stat((dir_ / "m.json").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0640U);
}

TEST_F(ManifestTarget, MayBeStdoutWhichThenHoldsNothingElse) {
  for (const char* name : {"-", "/dev/stdout"}) {
    const Outcome outcome = Write(name);
    EXPECT_EQ(outcome.code, kExitFine) << name;
    EXPECT_THAT(outcome.out, ::testing::StartsWith("{\"ckptd_manifest\": 1")) << name;
  }
  EXPECT_EQ(Names(), std::set<std::string>{"model.safetensors"});
}

TEST_F(ManifestTarget, IsNotWrittenForANameThatJsonCannotHold) {
  const std::string odd = dir_ / "odd\xff.safetensors";
  WriteTinyModel(odd);
  const Outcome outcome = run_({"verify", odd, "--write-manifest", dir_ / "m.json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("odd\\xff.safetensors is not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "m.json"));
}

}  // namespace
}  // namespace ckptd::cli

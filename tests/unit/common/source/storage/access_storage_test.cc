// Reading on behalf of others, and in roots.
#include "common/source/storage/access_storage.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/base/reasons.h"
#include "common/source/storage/permission.h"
#include "tests/testing/as_guest.h"
#include "tests/testing/offered_memory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

struct stat FileOf(uid_t uid, gid_t gid, mode_t mode) {
  struct stat file = {};
  file.st_uid = uid;
  file.st_gid = gid;
  file.st_mode = mode;
  return file;
}

TEST(ModeAllows, TheFirstClassThatTheCallerIsOfDecides) {
  const Caller caller{7, 70, {71, 75}};
  const auto reads = [&](uid_t uid, gid_t gid, mode_t mode) {
    return ModeAllows(FileOf(uid, gid, mode), caller, Permission::kRead);
  };
  EXPECT_TRUE(reads(7, 1, 0400));
  EXPECT_FALSE(reads(7, 70, 0077)) << "an owner is of no other class";
  EXPECT_TRUE(reads(1, 70, 0040));
  EXPECT_TRUE(reads(1, 75, 0040));
  EXPECT_FALSE(reads(1, 75, 0704)) << "nor is a member";
  EXPECT_TRUE(reads(1, 1, 0004));
  EXPECT_FALSE(reads(1, 72, 0770));
}

TEST(ModeAllows, ReadingAndEnteringAreTwoThings) {
  const Caller caller{7, 70};
  EXPECT_FALSE(ModeAllows(FileOf(1, 1, 0004), caller, Permission::kEnter));
  EXPECT_TRUE(ModeAllows(FileOf(1, 1, 0001), caller, Permission::kEnter));
  EXPECT_FALSE(ModeAllows(FileOf(1, 1, 0001), caller, Permission::kRead));
}

class AccessStorageTest : public ::testing::Test {
 protected:
  void SetUp() override { Mode("", 0755); }
  void Mode(const std::string& name, mode_t mode) {
    ASSERT_EQ(::chmod((folder_ / name).c_str(), mode), 0);
  }
  static bool Lists(const Storage& storage, const std::string& folder) {
    return storage.List(folder, [](std::string_view) { return true; }).ok();
  }
  absl::Status OpenAsGuest(const std::string& name, std::vector<gid_t> groups = {}) {
    return AccessStorage(AccessOf(SomeGuest(std::move(groups)))).Open(folder_ / name).status();
  }

  const TempFolder folder_;
};

// --- guests ---

TEST_F(AccessStorageTest, AGuestReadsWhatEverybodyMayRead) {
  folder_.Write("a", "bytes");
  Mode("a", 0644);
  EXPECT_OK(OpenAsGuest("a"));
}

TEST_F(AccessStorageTest, AGuestDoesNotReadWhatTheDaemonMayAndItMayNot) {
  folder_.Write("a", "bytes");
  Mode("a", 0640);
  const absl::Status status = OpenAsGuest("a");
  EXPECT_THAT(status, FailsWith(kDenied, reason::kSourceForbidden));
  EXPECT_THAT(status, Says("for uid 43210: that user may not read it"));
  EXPECT_EQ(FactsOf(status).at("file"), folder_ / "a");
}

TEST_F(AccessStorageTest, AGuestReadsByItsGroups) {
  folder_.Write("a", "bytes");
  Mode("a", 0640);
  EXPECT_OK(OpenAsGuest("a", {::getegid()}));
  EXPECT_OK(AccessStorage(AccessOf(Caller{43'210, ::getegid()})).Open(folder_ / "a"));
}

TEST_F(AccessStorageTest, AGuestMustBeAbleToEnterEveryFolderOnTheWay) {
  folder_.Write("closed/open/a", "bytes");
  for (const char* name : {"closed/open", "closed/open/a"}) Mode(name, 0755);
  Mode("closed", 0750);
  EXPECT_THAT(OpenAsGuest("closed/open/a"), FailsWith(kDenied, reason::kSourceForbidden));
  EXPECT_THAT(OpenAsGuest("closed/open/a"), Says("may not enter a folder on the way"));
  // Not to be used to look for names, either.
  EXPECT_THAT(OpenAsGuest("closed/none"), FailsWith(kDenied, reason::kSourceForbidden));
  EXPECT_OK(OpenAsGuest("closed/open/a", {::getegid()}));
}

TEST_F(AccessStorageTest, AFolderThatAGuestMayEnterAndNotListIsNotListed) {
  folder_.Write("drop/a", "bytes");
  Mode("drop", 0711);
  Mode("drop/a", 0644);
  const AccessStorage storage(AccessOf(SomeGuest()));
  EXPECT_OK(storage.Open(folder_ / "drop/a"));
  EXPECT_FALSE(Lists(storage, folder_ / "drop"));
  Mode("drop", 0755);
  EXPECT_TRUE(Lists(storage, folder_ / "drop"));
}

TEST_F(AccessStorageTest, LinksLeadAGuestNowhereThatItCouldNotGo) {
  folder_.Write("closed/a", "bytes");
  folder_.Write("open/b", "bytes");
  Mode("closed/a", 0644);
  Mode("open", 0755);
  Mode("open/b", 0644);
  Mode("closed", 0700);
  fs::create_symlink("closed/a", folder_ / "relative");
  fs::create_symlink(folder_ / "closed/a", folder_ / "absolute");
  fs::create_directory_symlink("closed", folder_ / "folder");
  fs::create_symlink("../open/./b", folder_ / "open/fine");
  for (const char* name : {"relative", "absolute", "folder/a", "open/../closed/a"}) {
    EXPECT_THAT(OpenAsGuest(name), FailsWith(kDenied, reason::kSourceForbidden)) << name;
  }
  EXPECT_OK(OpenAsGuest("open/fine"));
  fs::create_symlink("circle", folder_ / "circle");
  EXPECT_THAT(OpenAsGuest("circle"), Says("its links lead in a circle"));
}

TEST_F(AccessStorageTest, AGuestGetsNothingOfProc) {
  const std::string file = folder_.Write("a", "bytes");
  const UniqueFd open(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const std::string magic = "/proc/self/fd/" + std::to_string(open.get());
  fs::create_symlink(magic, folder_ / "link");
  const AccessStorage storage(AccessOf(SomeGuest()));
  for (const std::string& path : {magic, folder_ / "link", std::string("/proc/self/maps")}) {
    EXPECT_THAT(storage.Open(path), FailsWith(kDenied, reason::kSourceForbidden)) << path;
    EXPECT_THAT(storage.Open(path), Says("its mode does not tell who may read"));
  }
}

TEST_F(AccessStorageTest, WhatAnAccessListMaySayOtherwiseIsNotJudged) {
  folder_.Write("a", "bytes");
  Mode("a", 0644);
  // Version 2; entries of tag, permission and id: user 43210 has none, others may read.
  const std::string list = LittleEndian(2).substr(0, 4) +
                           std::string("\x01\x00\x06\x00\xff\xff\xff\xff", 8) +
                           std::string("\x02\x00\x00\x00\xca\xa8\x00\x00", 8) +
                           std::string("\x04\x00\x04\x00\xff\xff\xff\xff", 8) +
                           std::string("\x10\x00\x04\x00\xff\xff\xff\xff", 8) +
                           std::string("\x20\x00\x04\x00\xff\xff\xff\xff", 8);
  if (::setxattr((folder_ / "a").c_str(), "system.posix_acl_access", list.data(), list.size(), 0) != 0) {
    GTEST_SKIP() << "this file system has no access lists";
  }
  EXPECT_THAT(OpenAsGuest("a"), FailsWith(kDenied, reason::kSourceForbidden));
  EXPECT_THAT(OpenAsGuest("a"), Says("access list"));
}

// --- roots ---

class RootsTest : public AccessStorageTest {
 protected:
  void SetUp() override {
    AccessStorageTest::SetUp();
    folder_.Write("root/models/a", "bytes");
    folder_.Write("outside/b", "bytes");
    for (const char* name : {"root", "root/models", "outside"}) Mode(name, 0755);
  }
  void ExpectOutside(const std::string& path) {
    for (const AccessStorage* storage : {&owners_, &guests_}) {
      EXPECT_THAT(storage->Open(path), FailsWith(kDenied, reason::kSourceOutsideRoots)) << path;
      EXPECT_THAT(storage->Stat(path), FailsWith(kDenied, reason::kSourceOutsideRoots)) << path;
      EXPECT_FALSE(Lists(*storage, path)) << path;
    }
  }

  const std::vector<std::string> roots_ = {folder_ / "root/models", folder_ / "root/cache"};
  const AccessStorage owners_{AccessOf(std::nullopt, roots_)};
  const AccessStorage guests_{AccessOf(SomeGuest(), roots_)};
};

TEST_F(RootsTest, OnlyWhatLiesInOneIsRead) {
  EXPECT_OK(owners_.Open(folder_ / "root/models/a"));
  EXPECT_OK(guests_.Open(folder_ / "root/models/a"));
  EXPECT_TRUE(Lists(owners_, folder_ / "root/models"));
  EXPECT_TRUE(Lists(guests_, folder_ / "root/models"));
  ExpectOutside(folder_ / "outside/b");
  ExpectOutside(folder_ / "outside");
  ExpectOutside(folder_ / "root");
  ExpectOutside(folder_ / "root/models/../../outside/b");
  ExpectOutside("/etc/passwd");
  // Names that only begin alike.
  folder_.Write("root/models-of-others/c", "bytes");
  ExpectOutside(folder_ / "root/models-of-others/c");
}

TEST_F(RootsTest, LinksThatLeadOutAreRefused) {
  fs::create_symlink("../../outside/b", folder_ / "root/models/relative");
  fs::create_symlink(folder_ / "outside/b", folder_ / "root/models/absolute");
  fs::create_directory_symlink("../../outside", folder_ / "root/models/folder");
  fs::create_symlink("/proc/self/root/etc/passwd", folder_ / "root/models/magic");
  for (const char* name : {"relative", "absolute", "folder", "folder/b", "magic"}) {
    ExpectOutside(folder_ / ("root/models/" + std::string(name)));
  }
}

// A hub cache: snapshots of links to blobs.
TEST_F(RootsTest, LinksInsideWork) {
  folder_.Write("root/models/blobs/3f9a", "bytes");
  fs::create_directories(folder_ / "root/models/snapshots/main");
  for (const char* name : {"blobs", "snapshots", "snapshots/main"}) {
    Mode("root/models/" + std::string(name), 0755);
  }
  fs::create_symlink("../../blobs/3f9a", folder_ / "root/models/snapshots/main/model");
  EXPECT_OK(owners_.Open(folder_ / "root/models/snapshots/main/model"));
  EXPECT_OK(guests_.Open(folder_ / "root/models/snapshots/main/model"));
}

TEST_F(RootsTest, WhatIsMissingInsideIsNotFoundAndOutsideIsNotLookedFor) {
  EXPECT_THAT(owners_.Open(folder_ / "root/models/none"),
              FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  ExpectOutside(folder_ / "outside/none");
}

TEST_F(RootsTest, MemoryThatAProcessOffersLiesInNoFolder) {
  const std::string bytes(4096, 'x');
  const OfferedMemory offer("{}", {{bytes.data(), bytes.size()}});
  ASSERT_TRUE(offer.good());
  EXPECT_OK(owners_.Open(offer.path()));
  EXPECT_OK(owners_.Stat(offer.path()));
  // A file that the process has open is one of a folder.
  const UniqueFd open(::open((folder_ / "outside/b").c_str(), O_RDONLY | O_CLOEXEC));
  ExpectOutside("/proc/self/fd/" + std::to_string(open.get()));
}

// --- passed files ---

TEST_F(AccessStorageTest, WhatAClientPassesIsReadWhateverItsPathHasHere) {
  const SourceAccess access = AccessOf(SomeGuest(), {folder_ / "root"});
  auto& passed = std::const_pointer_cast<SourceRules>(access.rules)->passed;
  folder_.Write("private/a", "of the client");
  const std::string path = folder_.Write("a", "of the daemon");
  Mode("private", 0700);
  const auto pass = passed.Add(access.owner(), {{path, OpenToPass(folder_ / "private/a")}});
  ASSERT_OK_AND_ASSIGN(const auto object, AccessStorage(access).Open(path));
  std::string bytes(object->size(), '\0');
  ASSERT_OK(object->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  EXPECT_EQ(bytes, "of the client");
  EXPECT_EQ(object->path(), path);
}

TEST_F(AccessStorageTest, OnlyARegularFileIsReadOfWhatWasPassed) {
  const SourceAccess access = AccessOf(SomeGuest());
  auto& passed = std::const_pointer_cast<SourceRules>(access.rules)->passed;
  const auto pass = passed.Add(access.owner(), {{"/m/device", OpenToPass("/dev/zero")},
                                                {"/m/folder", OpenToPass(folder_.path())}});
  for (const char* path : {"/m/device", "/m/folder", "/m"}) {
    EXPECT_THAT(AccessStorage(access).Open(path), Says("not a regular file")) << path;
  }
}

TEST_F(AccessStorageTest, WhatAnotherUserHasPassedIsNotThere) {
  const SourceAccess access = AccessOf(SomeGuest());
  auto& passed = std::const_pointer_cast<SourceRules>(access.rules)->passed;
  const auto pass = passed.Add({43'299, ""}, {{"/m/a", OpenToPass(folder_.Write("a", "bytes"))}});
  EXPECT_THAT(AccessStorage(access).Open("/m/a"),
              FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
}

TEST_F(AccessStorageTest, APassedFileIsTheObjectThatItsPathLeadsTo) {
  const std::string path = folder_.Write("a", "bytes");
  const SourceAccess access = AccessOf(SomeGuest());
  auto& passed = std::const_pointer_cast<SourceRules>(access.rules)->passed;
  const auto pass = passed.Add(access.owner(), {{path, OpenToPass(path)}});
  ASSERT_OK_AND_ASSIGN(const auto by_descriptor, AccessStorage(access).Stat(path));
  ASSERT_OK_AND_ASSIGN(const auto by_path, PosixStorage().Stat(path));
  EXPECT_EQ(by_descriptor.identity, by_path.identity) << "so that one is resident for the other";
}

}  // namespace
}  // namespace ckptd

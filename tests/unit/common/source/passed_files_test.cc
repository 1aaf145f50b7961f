#include "common/source/passed_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/testing/as_guest.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const PassedFiles::Owner kOwner{1001, "job"};

class PassedFilesTest : public ::testing::Test {
 protected:
  std::shared_ptr<const void> Pass(const PassedFiles::Owner& owner,
                                   const std::vector<std::string>& paths) {
    PassedFiles::Files files;
    for (const std::string& path : paths) files[path] = OpenToPass("/dev/null");
    return passed_.Add(owner, std::move(files));
  }

  PassedFiles passed_;
};

TEST_F(PassedFilesTest, AFileCountsAsLongAsItIsPassed) {
  auto pass = Pass(kOwner, {"/m/a"});
  EXPECT_NE(passed_.Find(kOwner, "/m/a"), nullptr);
  EXPECT_EQ(passed_.count(), 1u);
  pass.reset();
  EXPECT_EQ(passed_.Find(kOwner, "/m/a"), nullptr);
  EXPECT_EQ(passed_.count(), 0u);
}

TEST_F(PassedFilesTest, WhatWasFoundStaysOpen) {
  auto pass = Pass(kOwner, {"/m/a"});
  const PassedFiles::Descriptor found = passed_.Find(kOwner, "/m/a");
  pass.reset();
  EXPECT_GE(::fcntl(found->get(), F_GETFD), 0);
}

TEST_F(PassedFilesTest, AFileCountsForItsUserAndJobAlone) {
  const auto pass = Pass(kOwner, {"/m/a"});
  for (const PassedFiles::Owner& other : {PassedFiles::Owner{1002, "job"},
                                          PassedFiles::Owner{1001, "another"},
                                          PassedFiles::Owner{std::nullopt, "job"}}) {
    EXPECT_EQ(passed_.Find(other, "/m/a"), nullptr);
    EXPECT_FALSE(passed_.Has(other, "/m"));
  }
}

TEST_F(PassedFilesTest, TheNewestOfOnePathCounts) {
  const auto first = Pass(kOwner, {"/m/a"});
  const PassedFiles::Descriptor older = passed_.Find(kOwner, "/m/a");
  auto second = Pass(kOwner, {"/m/a"});
  EXPECT_NE(passed_.Find(kOwner, "/m/a"), older);
  second.reset();
  EXPECT_EQ(passed_.Find(kOwner, "/m/a"), older) << "the first is passed still";
}

TEST_F(PassedFilesTest, AFolderHasTheFilesThatWerePassedLastInIt) {
  const auto before = Pass(kOwner, {"/m/gone"});
  const auto pass = Pass(kOwner, {"/m/b", "/m/a", "/m/sub/c", "/m/sub/d", "/m.json", "/other/x"});
  EXPECT_THAT(passed_.List(kOwner, "/m"), ElementsAre("a", "b", "sub"));
  EXPECT_THAT(passed_.List(kOwner, "/m/sub"), ElementsAre("c", "d"));
  EXPECT_THAT(passed_.List(kOwner, "/"), ElementsAre("m", "m.json", "other"));
  EXPECT_THAT(passed_.List(kOwner, "/m/a"), IsEmpty());
  EXPECT_TRUE(passed_.Has(kOwner, "/m"));
  EXPECT_FALSE(passed_.Has(kOwner, "/none"));
}

}  // namespace
}  // namespace ckptd

#include "common/base/utf8.h"
#include "common/source/path_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>


namespace ckptd {
namespace {

TEST(PathText, LeavesPathsThatAreUtf8AsTheyAre) {
  for (const std::string path : {"/models/a b", "/100%25/\u5c64", "relative", "file:a%20b", "file://host/%20", "file://", ""}) {
    EXPECT_EQ(TextOfPath(path), path);
    EXPECT_EQ(PathOfText(path), path);
  }
}

TEST(PathText, WritesOthersAsFileUris) {
  EXPECT_EQ(TextOfPath("/models/\xff\xc3\xa9 100%"), "file:///models/%FF%C3%A9%20100%25");
}

TEST(PathText, ReadsTheUrisThatPeopleWrite) {
  EXPECT_EQ(PathOfText("file:///models/a%20b"), "/models/a b");
  EXPECT_EQ(PathOfText("file:///models/%c3%A9"), "/models/\xc3\xa9");
}

TEST(PathText, ASourceHasOneSpelling) {
  for (const std::string text : {"/m/a", "/m/a/", "//m//a", "/m/./a/.", "file:///m/a/"}) {
    EXPECT_EQ(SourceOfText(text), "/m/a") << text;
  }
  EXPECT_EQ(SourceOfText("/m/../a"), "/m/../a");
  EXPECT_EQ(SourceOfText("/"), "/");
  EXPECT_EQ(SourceOfText("//./"), "/");
  EXPECT_EQ(SourceOfText("./m/.a"), "m/.a");
  EXPECT_EQ(SourceOfText(""), "");
  EXPECT_EQ(SourceOfText("./"), ".");
}

TEST(PathText, APartStandsBehindTheLastHash) {
  const auto split = [](std::string_view source) {
    const SourceName name = SplitPart(source);
    return name.path + " " + name.part;
  };
  EXPECT_EQ(split("/m/a#optimizer"), "/m/a optimizer");
  EXPECT_EQ(split("/m/a/#optimizer"), "/m/a optimizer") << "a completed folder";
  EXPECT_EQ(split("/m/#1#rank-0_x.pt"), "/m/#1 rank-0_x.pt");
  for (const std::string whole : {"/m/a", "/m/a#", "/m/#a#", "/m#b/a", "/m/a#b c", ""}) {
    EXPECT_EQ(split(whole), whole + " ");
  }
  EXPECT_EQ(JoinPart("/m/a", "x"), "/m/a#x");
  EXPECT_EQ(JoinPart("/m/a", ""), "/m/a");
}

TEST(PathText, AnyPathComesBackFromTextThatIsUtf8) {
  std::mt19937 random(7);
  constexpr std::string_view kBytes = "/%4fF:\xff\xc3\xa9\x80 ";
  for (int i = 0; i < 20'000; ++i) {
    std::string path = "/";
    for (size_t bytes = random() % 12; bytes > 0; --bytes) {
      path.push_back(kBytes[random() % kBytes.size()]);
    }
    const std::string text = TextOfPath(path);
    EXPECT_EQ(ValidUtf8Prefix(text), text.size());
    EXPECT_EQ(PathOfText(text), path) << text;
  }
}

}  // namespace
}  // namespace ckptd

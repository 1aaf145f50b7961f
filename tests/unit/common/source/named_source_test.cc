// What people write for a path: "~", variables, names of the hub.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/reasons.h"
#include "common/source/open.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

// A variable of this process, as it was when the test is over.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_.empty() ? ::unsetenv(name_) : ::setenv(name_, before_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
  std::string before_;
};

class NamedSource : public testing::Test {
 protected:
  const TempFolder folder_;
  const Variable home_{"HOME", folder_ / "home"};
  const Variable models_{"CKPTD_TEST_MODELS", folder_ / "models"};
  const Variable hub_{"HF_HUB_CACHE", folder_ / "hub"};
};

TEST_F(NamedSource, HasTheHomeAndVariablesThatAreSet) {
  EXPECT_THAT(*AbsolutePath("~/a"), folder_ / "home/a");
  EXPECT_THAT(*AbsolutePath("$CKPTD_TEST_MODELS/a"), folder_ / "models/a");
  EXPECT_THAT(*AbsolutePath("/x/${CKPTD_TEST_MODELS}b"), "/x/" + (folder_ / "models") + "b");
}

TEST_F(NamedSource, KeepsWhatIsNoVariable) {
  for (const char* path : {"/x/$CKPTD_TEST_NOT_SET/a", "/x/${CKPTD_TEST_MODELS", "/x/$", "/x/$$",
                           "/x/${}", "/x/a~"}) {
    EXPECT_EQ(*AbsolutePath(path), path);
  }
}

TEST_F(NamedSource, IsThePathItselfWhereThatExists) {
  const std::string odd = folder_ / "$CKPTD_TEST_MODELS";
  fs::create_directory(odd);
  EXPECT_EQ(*AbsolutePath(odd), odd);
}

TEST_F(NamedSource, IsARevisionOfTheHubWithSlashes) {
  const fs::path model = folder_ / "hub/models--me--two";
  const auto cached = [&model](const fs::path& revision, const std::string& commit) {
    fs::create_directories((model / "refs" / revision).parent_path());
    std::ofstream(model / "refs" / revision) << commit;
    fs::create_directories(model / "snapshots" / commit);
  };
  cached("refs/pr/1", "aaa");
  cached("feature/x", "bbb");
  EXPECT_EQ(*AbsolutePath("hf://me/two@refs/pr/1"), model / "snapshots/aaa");
  EXPECT_EQ(*AbsolutePath("hf://me/two@refs/pr/1/sub"), model / "snapshots/aaa/sub");
  EXPECT_EQ(*AbsolutePath("hf://me/two@feature%2Fx"), model / "snapshots/bbb");
  const auto cut = AbsolutePath("hf://me/two@feature/x");
  EXPECT_THAT(cut, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(cut, Says("a slash inside of a revision is written %2F"));
}

TEST_F(NamedSource, KeepsThePartBehindIt) {
  fs::create_directories(folder_ / "hub/models--me--two/snapshots/main");
  EXPECT_EQ(*AbsolutePath("hf://me/two#optimizer"),
            folder_ / "hub/models--me--two/snapshots/main#optimizer");
  EXPECT_EQ(*AbsolutePath("me/two#optimizer"),
            folder_ / "hub/models--me--two/snapshots/main#optimizer");
  EXPECT_EQ(*AbsolutePath("~/a/#optimizer"), folder_ / "home/a#optimizer");
  fs::create_directories(folder_ / "#odd");
  EXPECT_EQ(*AbsolutePath(folder_ / "#odd"), folder_ / "#odd");
}

}  // namespace
}  // namespace ckptd

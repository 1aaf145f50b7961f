#include "server/rpc/file_passing.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using namespace std::string_literals;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

std::string Header(size_t files, size_t job_bytes, size_t text_bytes) {
  std::string header(FilePassing::kHeaderBytes, '\0');
  const uint32_t numbers[] = {static_cast<uint32_t>(files), static_cast<uint32_t>(job_bytes),
                              static_cast<uint32_t>(text_bytes)};
  std::memcpy(header.data(), "CKPTDFDS", 8);
  std::memcpy(header.data() + 8, numbers, sizeof(numbers));
  return header;
}

class FilePassingTest : public ::testing::Test {
 protected:
  std::vector<UniqueFd> Files(size_t count, int flags = O_RDONLY) {
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < count; ++i) fds.emplace_back(::open(file_.c_str(), flags | O_CLOEXEC));
    return fds;
  }
  static absl::Status Add(FilePassing& passing, const std::string& text, std::vector<UniqueFd> fds) {
    return passing.Add(std::as_bytes(std::span(text)), std::move(fds));
  }
  // All of a passing at once.
  absl::StatusOr<PassedFiles::Files> Pass(const std::string& job, const std::string& paths,
                                          std::vector<UniqueFd> fds) {
    CKPTD_ASSIGN_OR_RETURN(
        FilePassing passing,
        FilePassing::Begin(Header(fds.size(), job.size(), job.size() + paths.size())));
    CKPTD_RETURN_IF_ERROR(Add(passing, job + paths, std::move(fds)));
    return passing.Take();
  }

  const TempFolder folder_;
  const std::string file_ = folder_.Write("a", "bytes");
};

TEST_F(FilePassingTest, PathsAndDescriptorsComeInPartsOfAnySize) {
  const std::string text = "job/m/a\0/m/b\0/m/c\0"s;
  ASSERT_OK_AND_ASSIGN(FilePassing passing, FilePassing::Begin(Header(3, 3, text.size())));
  for (size_t at = 0; at < text.size(); ++at) {
    EXPECT_FALSE(passing.complete());
    ASSERT_OK(Add(passing, text.substr(at, 1), Files(at == 4 ? 2 : at == 15 ? 1 : 0)));
  }
  ASSERT_TRUE(passing.complete());
  EXPECT_EQ(passing.job_key(), "job");
  ASSERT_OK_AND_ASSIGN(const auto files, passing.Take());
  EXPECT_EQ(files.size(), 3u);
  EXPECT_GE(::fcntl(files.at("/m/b")->get(), F_GETFD), 0);
}

TEST_F(FilePassingTest, ATokenIsNoHeader) {
  EXPECT_FALSE(FilePassing::IsHeader("0123456789abcdef0123456789abcdef"));
  EXPECT_TRUE(FilePassing::IsHeader(Header(1, 0, 3)));
}

TEST_F(FilePassingTest, AHeaderOfMoreThanIsTakenIsRefused) {
  for (const std::string& header :
       {Header(0, 0, 3), Header(FilePassing::kMostFiles + 1, 0, 3), Header(1, 3, 3),
        Header(1, 2000, 3000), Header(4096, 0, FilePassing::kMostTextBytes + 1),
        Header(1, 0, 5000),
        Header(UINT32_MAX, UINT32_MAX, UINT32_MAX), Header(1, 0, 3).substr(1)}) {
    EXPECT_THAT(FilePassing::Begin(header).status(), FailsWith(kInvalid, reason::kInvalidRequest));
  }
}

TEST_F(FilePassingTest, WhatIsNotAsTheHeaderSaysIsRefused) {
  ASSERT_OK_AND_ASSIGN(FilePassing passing, FilePassing::Begin(Header(1, 0, 5)));
  EXPECT_THAT(Add(passing, "/m/abc", {}), FailsWith(kInvalid, reason::kInvalidRequest));
  EXPECT_THAT(Add(passing, "/m", Files(2)), FailsWith(kInvalid, reason::kInvalidRequest));
  EXPECT_THAT(Add(passing, "/m/a\0"s, {}), Says("1 descriptors did not come"));
}

TEST_F(FilePassingTest, PathsThatAreNoneAreRefused) {
  for (const std::string& paths : {"m/a\0/m/b\0"s, "/m/a\0/m/a\0"s, "/m/a\0/m/b/"s, "/m/a\0"s,
                                   "/m/a\0/m/b\0/m/c\0"s, "\0\0"s,
                                   "/m/a\0/"s + std::string(5000, 'x') + '\0'}) {
    EXPECT_THAT(Pass("", paths, Files(2)), FailsWith(kInvalid, reason::kInvalidRequest)) << paths;
  }
  EXPECT_OK(Pass("", "/m/a\0/m/b\0"s, Files(2)));
}

TEST_F(FilePassingTest, OnlyFilesThatTheClientMayReadAreTaken) {
  EXPECT_OK(Pass("", "/m/a\0"s, Files(1, O_RDWR)));
  for (const int flags : {O_WRONLY, O_PATH}) {
    const auto refused = Pass("", "/m/a\0"s, Files(1, flags));
    EXPECT_THAT(refused, FailsWith(kInvalid, reason::kInvalidRequest));
    EXPECT_THAT(refused, Says("that of /m/a is not open for reading"));
  }
}

}  // namespace
}  // namespace ckptd

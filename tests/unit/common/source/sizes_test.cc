// Files that say they are large are refused before any memory is taken for them: of these
// here, most would not fit into it.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/source/open.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLengths[] = {256 * kMiB, 512 * kMiB, 4'000'000 * kMiB};

// `bytes` and then a hole, to a length of `length`.
std::string Sparse(const TempFolder& folder, const std::string& name, const std::string& bytes,
                   uint64_t length) {
  const std::string path = folder.Write(name, bytes);
  std::filesystem::resize_file(path, length);
  return path;
}

TEST(ReadSmallFile, AFileAboveTheLimitIsRefusedUnread) {
  const TempFolder folder;
  for (const uint64_t length : kLengths) {
    const auto text = ReadSmallFile(Sparse(folder, "f", "", length), 100 * kMiB);
    EXPECT_THAT(text, FailsWith(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid));
    EXPECT_THAT(text, Says(std::to_string(length) + " bytes, more than the 104857600 allowed"));
  }
}

TEST(ReadSmallFile, AFileOfExactlyTheLimitIsRead) {
  const TempFolder folder;
  const std::string path = folder.Write("f", std::string(4096, 'x'));
  EXPECT_OK(ReadSmallFile(path, 4096));
  EXPECT_FALSE(ReadSmallFile(path, 4095).ok());
}

TEST(OpenCheckpoint, AnIndexAboveItsLimitIsRefusedUnread) {
  const TempFolder folder;
  for (const uint64_t length : kLengths) {
    const std::string path = Sparse(folder, "model.safetensors.index.json", "{", length);
    const auto index = OpenCheckpoint(path);
    EXPECT_THAT(index, Says("more than the 100000000 allowed"));
    EXPECT_EQ(FactsOf(index.status()).at("file"), path);
  }
}

TEST(OpenCheckpoint, AHeaderAboveItsLimitIsRefusedUnread) {
  const TempFolder folder;
  for (const uint64_t length : kLengths) {
    std::string start;
    for (uint64_t rest = length, i = 0; i < 8; ++i, rest >>= 8) {
      start.push_back(static_cast<char>(rest & 0xff));
    }
    const std::string path = Sparse(folder, "model.safetensors", start + "{", 8 + length);
    EXPECT_THAT(OpenCheckpoint(path), Says("at most 100000000 are allowed"));
  }
}

}  // namespace
}  // namespace ckptd

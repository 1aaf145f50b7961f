#include "common/source/storage/process_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/source/open.h"
#include "common/source/registry.h"
#include "tests/testing/offered_memory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
constexpr char kJson[] = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                         R"("b":{"dtype":"U8","shape":[2,2],"data_offsets":[3,7]}})";

class ProcessMemoryTest : public ::testing::Test {
 protected:
  std::string first_ = "one";
  std::string second_ = "FOUR";
  OfferedMemory offer_{kJson, {{first_.data(), 3}, {second_.data(), 4}}};
};

std::string Text(const std::vector<std::byte>& bytes) {
  std::string text(bytes.size(), '\0');
  std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

TEST_F(ProcessMemoryTest, IsASourceWhoseBytesStayWhereTheyAre) {
  ASSERT_TRUE(offer_.good());
  const auto index = OpenCheckpoint(offer_.path());
  ASSERT_OK(index);
  EXPECT_OK(CheckUnchanged(*index));
  const auto file = OpenObject(offer_.path());
  ASSERT_OK(file);
  ASSERT_TRUE((*file)->data_begin().has_value());
  EXPECT_TRUE((*file)->in_memory());
  EXPECT_EQ((*file)->fd(), -1) << "its file has a hole where the data is";
  for (const auto& [name, expected] : {std::pair("a", first_), std::pair("b", second_)}) {
    const Piece& piece = index->Find(name)->pieces.at(0);
    std::vector<std::byte> bytes(piece.bytes);
    EXPECT_OK((*file)->ReadAt(piece.offset, bytes));
    EXPECT_EQ(Text(bytes), expected);
  }
  first_[1] = 'X';  // no copy was made
  std::vector<std::byte> across(4);
  EXPECT_OK((*file)->ReadAt(*(*file)->data_begin() + 1, across));
  EXPECT_EQ(Text(across), "XeFO");
}

TEST_F(ProcessMemoryTest, HasNothingBehindItsRanges) {
  const auto file = OpenObject(offer_.path());
  ASSERT_OK(file);
  std::vector<std::byte> bytes(4);
  const uint64_t at = *(*file)->data_begin();
  EXPECT_THAT((*file)->ReadAt(at + 4, bytes), FailsWith(kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT((*file)->ReadAt(at + 7, bytes), FailsWith(kDataLoss, reason::kSourceInvalid));
}

TEST_F(ProcessMemoryTest, ThatIsNotSealedOrNotNamedThroughItsProcessIsRefused) {
  const std::string start = OfferedMemory::Start(kJson, {{first_.data(), 3}, {second_.data(), 4}});
  const OfferedMemory open(start, 7, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  EXPECT_THAT(OpenCheckpoint(open.path()), FailsWith(kDataLoss, reason::kSourceInvalid));
  EXPECT_THAT(OpenCheckpoint(open.path()), Says("it is not sealed"));
  const std::string mine = fmt::format("/proc/self/fd/{}", offer_.fd());
  EXPECT_THAT(OpenCheckpoint(mine), Says("its path is not /proc/PID/fd/N"));
  // Elsewhere it is a file like any other, and none of safetensors.
  const TempFolder folder;
  const std::string copy = folder.path() + "/copy.safetensors";
  std::ofstream(copy, std::ios::binary) << start << "1234567";
  EXPECT_THAT(OpenCheckpoint(copy), Says("HeaderTooLarge"));
}

TEST_F(ProcessMemoryTest, OfAnotherUserThanWhoMadeTheFileIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file another user's";
  ASSERT_EQ(::fchown(offer_.fd(), 12345, 12345), 0);
  EXPECT_THAT(OpenCheckpoint(offer_.path()), Says("belongs to another user"));
}

TEST_F(ProcessMemoryTest, WithRangesThatDoNotFitIsRefused) {
  const auto check = [](const std::string& start, uint64_t more, const char* says) {
    const OfferedMemory offer(start, more, kOfferSeals);
    const auto index = OpenCheckpoint(offer.path());
    EXPECT_EQ(StatusOf(index).code(), kDataLoss) << says;
    EXPECT_THAT(index, Says(says));
  };
  const void* const here = first_.data();
  check("CKPTDMEM", 0, "ends");
  check("CKPTDMEM" + LittleEndian(kMaxMemoryRanges + 1), 100, "in 1000001 ranges");
  check("CKPTDMEM" + LittleEndian(UINT64_MAX), 100, "ranges");
  check("CKPTDMEM" + LittleEndian(5), 10, "ends among its ranges");
  check(OfferedMemory::Start(kJson, {{here, 0}}), 7, "range 0 has 0 bytes");
  check(OfferedMemory::Start(kJson, {{here, UINT64_MAX}}), 7, "range 0 has");
  const auto* const beyond = static_cast<const char*>(nullptr) + (uint64_t{1} << 63);
  check(OfferedMemory::Start(kJson, {{beyond, 3}}), 7, "range 0 has 3 bytes at 0x8");
  check(OfferedMemory::Start(kJson, {{here, 120}, {here, 120}}), 7, "longer than it says");
  check(OfferedMemory::Start(kJson, {{here, 3}}), 7, "not as long as its tensors");
  check(OfferedMemory::Start(kJson, {{here, 3}}), 3, "MetadataIncompleteBuffer");
}

TEST_F(ProcessMemoryTest, ThatIsNotThereOrGoesAwayIsAnError) {
  void* const page =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const OfferedMemory offer(kJson, {{page, 7}});
  const auto file = OpenObject(offer.path());
  ASSERT_OK(file);
  ::munmap(page, 4096);
  std::vector<std::byte> bytes(7);
  EXPECT_THAT((*file)->ReadAt(*(*file)->data_begin(), bytes),
              FailsWith(absl::StatusCode::kUnavailable, reason::kSourceUnreadable));
  EXPECT_THAT(OpenCheckpoint(offer.path()), FailsWith(kDenied, reason::kSourceUnreadable));
  EXPECT_THAT(OpenCheckpoint(offer.path()), Says("cannot be read"));
}

TEST_F(ProcessMemoryTest, OfAProcessThatHasEndedIsAnError) {
  int ready[2] = {};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    first_ = "own";  // of the child alone
    const OfferedMemory offer(kJson, {{first_.data(), 3}, {second_.data(), 4}});
    const std::string path = offer.path() + "\n";
    if (::write(ready[1], path.data(), path.size()) < 0) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  std::string path;
  for (char c = 0; ::read(ready[0], &c, 1) == 1 && c != '\n';) path += c;
  const auto file = OpenObject(path);
  EXPECT_OK(file);
  std::vector<std::byte> bytes(3);
  EXPECT_OK((*file)->ReadAt(*(*file)->data_begin(), bytes));
  EXPECT_EQ(Text(bytes), "own");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT((*file)->ReadAt(*(*file)->data_begin(), bytes),
              FailsWith(kDataLoss, reason::kSourceChanged));
  EXPECT_FALSE(OpenCheckpoint(path).ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace ckptd

#include "server/memory/host/memory_claims.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using Bytes = absl::StatusOr<uint64_t>;

MemoryClaims::Levels OfMachine(MemoryClaims::Available available) {
  return MemoryClaims::OfMachine(std::move(available));
}

// Two daemons of a host with 100 bytes.
class TwoDaemons : public testing::Test {
 protected:
  static absl::StatusOr<std::vector<MemoryLevel>> Hundred() {
    return std::vector<MemoryLevel>{{kMachineLevel, 100, 100}};
  }
  // None: the memory did not suffice.
  static std::optional<MemoryClaim> Claim(const MemoryClaims& daemon, uint64_t bytes,
                                          uint64_t spare = 0) {
    auto answer = daemon.Claim(bytes, spare);
    EXPECT_OK(answer);
    return answer.ok() ? std::move(answer->claim) : std::nullopt;
  }
  // Flags of this process's descriptors of the file.
  std::vector<int> OpenFlags() const {
    std::vector<int> flags;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone) != path_) continue;
      flags.push_back(::fcntl(std::stoi(entry.path().filename()), F_GETFD));
    }
    return flags;
  }
  bool FileIsThere() const { return std::filesystem::exists(path_); }

  const TempFolder folder_;
  const std::string path_ = folder_ / "claims";
  const MemoryClaims one_{path_, "rank 1", Hundred};
  const MemoryClaims other_{path_, "rank 1", Hundred};
};

TEST_F(TwoDaemons, DoNotBothClaimTheSameMemory) {
  const auto first = Claim(one_, 60);
  EXPECT_TRUE(first.has_value());
  EXPECT_FALSE(Claim(other_, 60).has_value());
}

TEST_F(TwoDaemons, ShareWhatIsEnoughForBoth) {
  const auto first = Claim(one_, 60);
  EXPECT_TRUE(Claim(other_, 40).has_value());
}

TEST_F(TwoDaemons, AreToldWhatOthersClaim) {
  const auto first = Claim(one_, 60);
  const auto second = Claim(one_, 30);
  ASSERT_OK_AND_ASSIGN(const auto answer, other_.Claim(50));
  EXPECT_EQ(answer.available, 100U);
  EXPECT_EQ(answer.claimed, 90U);
}

TEST_F(TwoDaemons, CountWhatOneOfThemClaimsTwice) {
  const auto first = Claim(one_, 60);
  EXPECT_FALSE(Claim(one_, 60).has_value());
}

TEST_F(TwoDaemons, LeaveWhatIsToBeSpared) {
  const auto first = Claim(one_, 60);
  EXPECT_FALSE(Claim(other_, 30, 11).has_value());
  EXPECT_TRUE(Claim(other_, 30, 10).has_value());
}

TEST_F(TwoDaemons, FindFreeWhatIsNoLongerClaimed) {
  auto first = Claim(one_, 60);
  first.reset();
  EXPECT_TRUE(Claim(other_, 100).has_value());
}

TEST_F(TwoDaemons, CountOfAClaimWhatIsStillToBeFaultedIn) {
  auto first = Claim(one_, 60);
  first->Lower(25);
  ASSERT_OK_AND_ASSIGN(const auto answer, other_.Claim(80));
  EXPECT_EQ(answer.claimed, 25U);
}

TEST_F(TwoDaemons, LookAtClaimsBeforeTheyLookAtTheSystem) {
  auto first = Claim(one_, 60);
  // The first claim ends, and its memory is faulted in, just after the available memory was read.
  const MemoryClaims late(path_, "rank 1", OfMachine([&first]() -> Bytes {
    first.reset();
    return 100;
  }));
  EXPECT_FALSE(Claim(late, 60).has_value());
}

TEST_F(TwoDaemons, ClaimOneAfterTheOther) {
  // Two daemons that look at the same time would both find the memory free.
  std::atomic<int> looking = 0;
  std::atomic<bool> together = false;
  const auto look = [&]() -> Bytes {
    if (++looking > 1) together = true;
    for (int i = 0; i < 10; ++i) std::this_thread::yield();
    --looking;
    return 100;
  };
  std::vector<std::optional<MemoryClaim>> claims(16);
  std::vector<std::thread> threads;
  for (auto& claim : claims) {
    threads.emplace_back([&] {
      claim = Claim(MemoryClaims(path_, "rank 1", OfMachine(look)), 30);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(together);
  EXPECT_EQ(std::count_if(claims.begin(), claims.end(), [](auto& c) { return c.has_value(); }), 3);
}

TEST_F(TwoDaemons, CountNothingOfOneThatDied) {
  int ready[2] = {-1, -1};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto claim = Claim(other_, 60);
    const char byte = claim.has_value() ? 1 : 0;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 1);
  EXPECT_FALSE(Claim(one_, 60).has_value());
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(Claim(one_, 100).has_value());
  for (const int fd : ready) ::close(fd);
}

TEST_F(TwoDaemons, LeaveNoFileBehind) {
  auto first = Claim(one_, 60);
  { const auto second = Claim(other_, 40); }
  EXPECT_TRUE(FileIsThere());
  first.reset();
  EXPECT_FALSE(FileIsThere());
}

TEST_F(TwoDaemons, LeaveNoFileBehindWhereThereWasTooLittle) {
  EXPECT_FALSE(Claim(one_, 101).has_value());
  EXPECT_FALSE(FileIsThere());
}

TEST_F(TwoDaemons, RemoveAtTheirEndTheFileOfOneThatDied) {
  { std::ofstream(path_) << ""; }
  { const MemoryClaims third(path_, "rank 1", Hundred); }
  EXPECT_FALSE(FileIsThere());
}

TEST_F(TwoDaemons, KeepAtTheirEndTheFileOfOneThatClaims) {
  const auto first = Claim(one_, 60);
  { const MemoryClaims third(path_, "rank 1", Hundred); }
  EXPECT_FALSE(Claim(other_, 60).has_value());
}

TEST_F(TwoDaemons, ClaimInANewFileWhenTheOneTheyHaveOpenIsRemoved) {
  std::optional<MemoryClaim> late;
  std::thread other;
  // Called with the file locked. The file is removed when this has failed.
  const MemoryClaims failing(path_, "rank 1", OfMachine([&]() -> Bytes {
    other = std::thread([&] { late = Claim(other_, 60); });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(8);
    while (OpenFlags().size() < 2 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    return absl::InternalError("nothing is known");
  }));
  EXPECT_FALSE(failing.Claim(1).ok());
  other.join();
  EXPECT_TRUE(late.has_value());
  EXPECT_FALSE(Claim(one_, 60).has_value());
}

TEST_F(TwoDaemons, KeepNothingOpenInProgramsTheyStart) {
  const auto first = Claim(one_, 60);
  EXPECT_EQ(OpenFlags(), std::vector<int>{FD_CLOEXEC});
}

TEST_F(TwoDaemons, WaitNoLongerThanTheyAreToldForOneThatStandsStillAsItClaims) {
  int tries = 0;
  absl::Status status;
  // Called with the file locked.
  const MemoryClaims stopped(path_, "rank 1", OfMachine([&]() -> Bytes {
    ++tries;
    const MemoryClaims hurried(path_, "rank 2", Hundred, std::chrono::milliseconds(5));
    status = hurried.Claim(1).status();
    return 100;
  }));
  const auto claim = Claim(stopped, 60);
  EXPECT_EQ(tries, 1);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_THAT(status, Says("rank 1 has had " + path_));
  EXPECT_EQ(std::filesystem::file_size(path_), 0u) << "it names nobody once it is unlocked";
}

TEST_F(TwoDaemons, DoNotNameOneThatDiedAsItClaimed) {
  std::ofstream(path_) << "a long name of one that died";
  absl::Status status;
  const MemoryClaims stopped(path_, "rank 1", OfMachine([&]() -> Bytes {
    const MemoryClaims hurried(path_, "rank 2", Hundred, std::chrono::milliseconds(5));
    status = hurried.Claim(1).status();
    return 100;
  }));
  const auto claim = Claim(stopped, 60);
  EXPECT_THAT(status, Says("memory: rank 1 has had"));
}

TEST_F(TwoDaemons, GoOnWithoutAFileThatCannotBeHad) {
  const MemoryClaims nowhere(folder_ / "nothing" + "/claims", "rank 1", Hundred);
  const auto first = Claim(nowhere, 60);
  EXPECT_TRUE(Claim(nowhere, 60).has_value());
  EXPECT_FALSE(Claim(nowhere, 101).has_value());
}

TEST_F(TwoDaemons, FailWhereTheSystemDoesNotSayWhatItHas) {
  const MemoryClaims blind(path_, "rank 1", OfMachine([]() -> Bytes {
    return absl::InternalError("no /proc");
  }));
  EXPECT_EQ(blind.Claim(1).status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(FileIsThere());
}

// Daemons of a machine of 1000 bytes, in control groups.
class DaemonsInGroups : public testing::Test {
 protected:
  using Levels = std::vector<MemoryLevel>;
  MemoryClaims DaemonIn(Levels groups) const {
    groups.insert(groups.begin(), {kMachineLevel, 1000, 1000});
    return MemoryClaims(folder_ / "claims", "rank 1", [groups] { return groups; });
  }
  static bool Fits(const absl::StatusOr<MemoryClaims::Answer>& answer) {
    EXPECT_OK(answer);
    return answer.ok() && answer->claim.has_value();
  }
  size_t Files() const {
    const std::filesystem::directory_iterator files(folder_.path());
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  const TempFolder folder_;
  const Levels small_ = {{"cgroup2-7", 100, 100}};
  const Levels other_ = {{"cgroup2-8", 100, 100}};
  const Levels nested_ = {{"cgroup2-9", 500, 500}, {"cgroup2-7", 100, 100}};
};

TEST_F(DaemonsInGroups, DoNotClaimTheSameMemoryOfTheirGroup) {
  const auto first = DaemonIn(small_).Claim(60);
  ASSERT_TRUE(Fits(first));
  const auto second = DaemonIn(small_).Claim(60);
  EXPECT_FALSE(Fits(second));
  EXPECT_EQ(second->available, 100U);
  EXPECT_EQ(second->claimed, 60U);
}

TEST_F(DaemonsInGroups, DoNotClaimTheSameMemoryOfAGroupAboveTheirs) {
  const auto first = DaemonIn(nested_).Claim(60);
  ASSERT_TRUE(Fits(first));
  EXPECT_FALSE(Fits(DaemonIn(small_).Claim(60)));
}

TEST_F(DaemonsInGroups, LeaveThoseOfOtherGroupsTheirMemory) {
  const auto first = DaemonIn(small_).Claim(60);
  EXPECT_TRUE(Fits(DaemonIn(other_).Claim(60)));
  EXPECT_TRUE(Fits(DaemonIn({}).Claim(900)));
}

TEST_F(DaemonsInGroups, ShareTheMachine) {
  const auto first = DaemonIn({}).Claim(950);
  ASSERT_TRUE(Fits(first));
  const auto second = DaemonIn(small_).Claim(60);
  EXPECT_FALSE(Fits(second));
  EXPECT_EQ(second->claimed, 950U);
}

TEST_F(DaemonsInGroups, FindFreeWhatIsNoLongerClaimed) {
  auto first = DaemonIn(small_).Claim(60);
  first->claim->Lower(30);
  EXPECT_TRUE(Fits(DaemonIn(small_).Claim(70)));
  first->claim.reset();
  EXPECT_TRUE(Fits(DaemonIn(small_).Claim(100)));
}

TEST_F(DaemonsInGroups, AreToldOfTheGroupThatNeverHasEnoughBeforeTheOneThatOthersClaim) {
  const auto first = DaemonIn({}).Claim(950);
  EXPECT_EQ(DaemonIn(small_).Claim(200)->available, 100U);
}

TEST_F(DaemonsInGroups, LeaveNoFilesBehind) {
  auto first = DaemonIn(nested_).Claim(60);
  EXPECT_EQ(Files(), 3U);
  EXPECT_FALSE(Fits(DaemonIn(small_).Claim(60)));
  EXPECT_EQ(Files(), 3U);
  first->claim.reset();
  EXPECT_EQ(Files(), 0U);
}

TEST_F(DaemonsInGroups, CountInTheGroupThatTheyWereMovedTo) {
  auto groups = std::make_shared<Levels>(Levels{{kMachineLevel, 1000, 1000}, small_.front()});
  const MemoryClaims moved(folder_ / "claims", "rank 1", [groups] { return *groups; });
  EXPECT_TRUE(Fits(moved.Claim(60)));
  groups->back() = other_.front();
  const auto claim = moved.Claim(60);
  EXPECT_FALSE(Fits(DaemonIn(other_).Claim(60)));
  EXPECT_TRUE(Fits(DaemonIn(small_).Claim(60)));
}

TEST(MemoryClaims, WithoutAPathAreNotCompared) {
  const MemoryClaims alone("", "rank 1", OfMachine([]() -> Bytes { return 100; }));
  ASSERT_OK_AND_ASSIGN(const auto first, alone.Claim(60));
  ASSERT_OK_AND_ASSIGN(const auto second, alone.Claim(60));
  EXPECT_TRUE(first.claim.has_value() && second.claim.has_value());
}

}  // namespace
}  // namespace ckptd

#include "server/daemon/slab_dir.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "server/keeper/slab_folder.h"
#include "tests/testing/keeping_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Config WithSlabDir(const std::string& path) {
  Config config;
  config.slab_dir = path;
  return config;
}

TEST(SlabDir, OnADiskIsRefusedWithWhatToMount) {
  for (const char* path : {"/proc", "/missing"}) {
    const auto made = MakeSlabFolder(WithSlabDir(path));
    EXPECT_THAT(made, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
    EXPECT_THAT(made, Says("emptyDir with medium: Memory"));
  }
}

TEST(SlabDir, EachRankOfEachJobHasAFolderOfItsOwn) {
  const TempFolder memory("/dev/shm");
  Config config = WithSlabDir(memory.path());
  ASSERT_OK_AND_ASSIGN(const std::string first, MakeSlabFolder(config));
  EXPECT_EQ(MakeSlabFolder(config).value(), first);
  config.rank = 1;
  EXPECT_NE(MakeSlabFolder(config).value(), first);
  ASSERT_EQ(::chmod(first.c_str(), 0770), 0);
  EXPECT_THAT(MakeSlabFolder(WithSlabDir(memory.path())), Says("nobody else can enter"));
}

TEST(SlabDir, ThatOthersCouldReplaceIsRefused) {
  const TempFolder memory("/dev/shm");
  ASSERT_OK(MakeSlabFolder(WithSlabDir(memory.path())));
  ASSERT_EQ(::chmod(memory.path().c_str(), 0777), 0);
  EXPECT_THAT(MakeSlabFolder(WithSlabDir(memory.path())),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
  EXPECT_THAT(MakeSlabFolder(WithSlabDir(memory.path())), Says("other users may write in " + memory.path()));
}

TEST(SlabDir, ThatCannotBeWrittenToIsRefusedBeforeALoadFails) {
  const TempFolder memory("/dev/shm");
  const auto refused = [&] {
    const Config config = WithSlabDir(memory.path());
    ASSERT_OK_AND_ASSIGN(const std::string folder, MakeSlabFolder(config));
    ASSERT_EQ(::chmod(folder.c_str(), 0500), 0);
    EXPECT_THAT(MakeSlabFolder(config), Says("let this daemon's user write there"));
  };
  if (::geteuid() != 0) return refused();
  ASSERT_EQ(::chown(memory.path().c_str(), 43'210, static_cast<gid_t>(-1)), 0);
  std::thread([&] {
    // This system call changes this thread only.
    ASSERT_EQ(::syscall(SYS_setresuid, -1, 43'210, -1), 0);
    refused();
  }).join();
}

TEST(SlabDir, WithoutRoomForTheBudgetIsRefusedWithTheNumbers) {
  Config config = WithSlabDir("/dev/shm");
  config.memory_budget = "8000TB";
  const auto room = SlabFolderBytes(config, "/dev/shm", 0);
  EXPECT_THAT(room, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
  EXPECT_THAT(room, Says("sizeLimit"));
  config.memory_budget = "80%";
  EXPECT_OK(SlabFolderBytes(config, "/dev/shm", 0));
  EXPECT_THAT(RefuseSlabDirOnGpu(config), Says("--memory host"));
  EXPECT_OK(RefuseSlabDirOnGpu(Config()));
}

// Whether the next process has a checkpoint whose files a reader of the same user forbade to all.
bool ComesBackAfterAReaderForbadeIt() {
  const TempFolder folder("/dev/shm");
  const auto next = [&folder] {
    return std::make_unique<KeepingProcess>(SlabFolder::Open(folder.path()).value(), 1,
                                            MakeSmallMemory(4, folder.path()));
  };
  auto process = next();
  if (!process->Load().ok()) return false;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    if (!file.path().string().ends_with("#0")) ::chmod(file.path().c_str(), 0);
  }
  process.reset();
  process = next();
  return process->Active() == std::vector<std::string>{kKeptName};
}

TEST(SlabFolder, TheNextProcessHasWhatAReaderTookThePermissionsFrom) {
  EXPECT_EXIT(
      {
        if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
        ::_exit(ComesBackAfterAReaderForbadeIt() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// One process after the other in one folder.
class SlabFolderTest : public ::testing::Test {
 protected:
  void Restart() {
    process_ = nullptr;
    process_ = NewProcess();
  }
  std::unique_ptr<KeepingProcess> NewProcess() {
    return std::make_unique<KeepingProcess>(SlabFolder::Open(folder_.path()).value(), 1,
                                            MakeSmallMemory(4, folder_.path()));
  }
  size_t Files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()),
                                             std::filesystem::directory_iterator()));
  }
  std::byte FirstByte() const {
    const auto shard = process_->catalog.leases().Look(kKeptName).value();
    return ReadBytes(shard.memory->View(), 0, 1)[0];
  }

  const TempFolder folder_{"/dev/shm"};
  std::unique_ptr<KeepingProcess> process_ = NewProcess();
};

TEST_F(SlabFolderTest, TheNextProcessHasTheCheckpointAgainAndAgain) {
  ASSERT_OK(process_->Load());
  for (int i = 0; i < 3; ++i) {
    Restart();
    ASSERT_THAT(process_->Active(), ElementsAre(kKeptName));
    EXPECT_EQ(FirstByte(), std::byte{0x5a});
    ASSERT_OK(process_->catalog.Pin(kKeptName, i % 2 == 0));  // which stores it anew
  }
  EXPECT_TRUE(process_->catalog.Get(kKeptName).value().pinned);
}

TEST_F(SlabFolderTest, MemoryThatIsUnloadedLeavesNoFileOnceItsProcessHasEnded) {
  ASSERT_OK(process_->Load());
  ASSERT_OK(process_->catalog.Unload(kKeptName, false));
  process_ = nullptr;
  EXPECT_EQ(Files(), 0U);
}

TEST_F(SlabFolderTest, MemoryIsUsedAgainAndKeptAgain) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(process_->Load());
    ASSERT_OK(process_->catalog.Unload(kKeptName, false));
  }
  ASSERT_OK(process_->Load());
  Restart();
  EXPECT_THAT(process_->Active(), ElementsAre(kKeptName));
}

TEST_F(SlabFolderTest, ChangedBytesAreRefusedAndNamedAndTheirFilesGo) {
  ASSERT_OK(process_->Load());
  process_->catalog.leases().Look(kKeptName).value().memory->View().segments[0][1] = std::byte{0};
  Restart();
  EXPECT_THAT(process_->Active(), IsEmpty());
  EXPECT_THAT(process_->keeping.state().dropped, ElementsAre(HasSubstr("bytes of w")));
  process_ = nullptr;
  EXPECT_EQ(Files(), 0U);
}

TEST_F(SlabFolderTest, WhatAKilledProcessHasNotFinishedIsRemoved) {
  process_ = nullptr;
  for (const char* name : {"segment-1-0", "checkpoints~b#1", "checkpoints~c#0", "checkpoints~c#2"}) {
    folder_.Write(name, "bytes");
  }
  Restart();
  EXPECT_THAT(process_->Active(), IsEmpty());
  process_ = nullptr;
  EXPECT_EQ(Files(), 0U);
}

TEST_F(SlabFolderTest, ARecordThatIsNoneIsRefused) {
  ASSERT_OK(process_->Load());
  process_ = nullptr;
  std::filesystem::remove(folder_ / "checkpoints~a#0");
  folder_.Write("checkpoints~a#0", "no record");
  Restart();
  EXPECT_THAT(process_->keeping.state().dropped, ElementsAre(HasSubstr("reading its record")));
}

TEST_F(SlabFolderTest, AFileThatIsALinkOrAFifoIsRefusedAndGoes) {
  ASSERT_OK(process_->Load());
  const TempFolder elsewhere("/dev/shm");
  for (const char* name : {"checkpoints~a#0", "checkpoints~a#1"}) {
    for (const bool fifo : {false, true}) {
      process_ = nullptr;
      const std::string kept = folder_ / name;
      const std::string aside = elsewhere / "aside";
      std::filesystem::rename(kept, aside);
      if (fifo) {
        ASSERT_EQ(::mkfifo(kept.c_str(), 0600), 0);
      } else {
        std::filesystem::create_symlink(aside, kept);
      }
      process_ = NewProcess();
      EXPECT_THAT(process_->Active(), IsEmpty()) << name << " " << fifo;
      EXPECT_EQ(Files(), 0U);
      ASSERT_OK(process_->Load());
    }
  }
}

TEST_F(SlabFolderTest, LeasesDoNotComeBack) {
  ASSERT_OK(process_->Load());
  const auto ticket = process_->leases.Open(kKeptName, AttachMode::kShared);
  int pair[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd ends[] = {UniqueFd(pair[0]), UniqueFd(pair[1])};
  process_->leases.Keep(ticket->lease, pair[0]);
  Restart();
  EXPECT_THAT(process_->leases.List(), IsEmpty());
  EXPECT_THAT(process_->Active(), ElementsAre(kKeptName));
}

TEST_F(SlabFolderTest, ASecondProcessIsRefusedAsLongAsTheFirstOneLives) {
  ASSERT_OK(process_->Load());
  const auto second = SlabFolder::Open(folder_.path());
  EXPECT_THAT(second.status(), FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
  EXPECT_THAT(second.status(), Says("another daemon has its memory there"));
  process_ = nullptr;
  EXPECT_OK(SlabFolder::Open(folder_.path()));
}

TEST_F(SlabFolderTest, MemoryThatLiesElsewhereIsNotKept) {
  process_ = nullptr;
  process_ = std::make_unique<KeepingProcess>(SlabFolder::Open(folder_.path()).value());
  ASSERT_OK(process_->Load());
  Restart();
  EXPECT_THAT(process_->Active(), IsEmpty());
}

TEST_F(SlabFolderTest, MemoryBeyondTheRoomOfTheFolderIsRefusedAndNotTouched) {
  // The kernel refuses it before it takes a page.
  HostMemoryOptions options;
  options.segment_bytes = options.budget_bytes = uint64_t{1} << 50;
  options.available_memory = []() -> absl::StatusOr<uint64_t> { return uint64_t{1} << 60; };
  options.folder = folder_.path();
  ASSERT_OK_AND_ASSIGN(const auto memory, HostMemory::Create(std::move(options)));
  const auto slab = memory->Allocate(uint64_t{1} << 50, AttachMode::kShared);
  EXPECT_THAT(slab.status(), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_THAT(slab.status(), Says("sizeLimit of the emptyDir"));
}

}  // namespace
}  // namespace ckptd

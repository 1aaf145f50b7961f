#include "server/memory/host/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 4 * kHugePageBytes;

std::unique_ptr<HostSegment> Make(uint64_t bytes = kBytes, PopulateOptions options = {}) {
  absl::StatusOr<std::unique_ptr<HostSegment>> segment = HostSegment::Create(1, bytes, options);
  EXPECT_OK(segment);
  return segment.ok() ? std::move(*segment) : nullptr;
}

Mapping Map(const UniqueFd& fd, int protection, int flags) {
  void* address = ::mmap(nullptr, kBytes, protection, flags, fd.get(), 0);
  return address == MAP_FAILED ? Mapping() : Mapping(address, kBytes);
}

// A number of kB from the part of /proc/self/smaps about `address`.
uint64_t SmapsKb(const void* address, const std::string& key) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(address) << "-";
  std::ifstream smaps("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) ours = line.rfind(start.str(), 0) == 0;
    if (ours && line.rfind(key, 0) == 0) return std::stoull(line.substr(key.size() + 1));
  }
  return 0;
}

TEST(HostSegment, IsZeroAndAlignedAndWhollyPresent) {
  for (const bool huge : {false, true}) {
    const auto segment = Make(kBytes, {.huge_pages = huge, .threads = 3});
    const std::span<std::byte> all(segment->data(), segment->bytes());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment->data()) % kHugePageBytes, 0U);
    EXPECT_EQ(SmapsKb(segment->data(), "Rss:") * 1024, kBytes);
    EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(HostSegment, ReportsTheHugePagesTheKernelReports) {
  const auto segment = Make();
  EXPECT_EQ(segment->huge_bytes(), SmapsKb(segment->data(), "ShmemPmdMapped:") * 1024);
}

// Whether this kernel collapses shared memory into a huge page on request.
bool KernelCollapses() {
  const UniqueFd fd(::memfd_create("probe", MFD_CLOEXEC));
  const uint64_t bytes[] = {kHugePageBytes};
  const int fds[] = {fd.get()};
  if (::ftruncate(fd.get(), kHugePageBytes) != 0) return false;
  const auto probe = MapSlab(fds, bytes, {.mode = MapMode::kSharedWritable});
  return probe.ok() && ::madvise(probe->data(), kHugePageBytes, 25 /* MADV_COLLAPSE */) == 0;
}

TEST(HostSegment, IsInHugePagesWhereTheKernelGivesThem) {
  if (!KernelCollapses()) GTEST_SKIP() << "this kernel gives no huge pages for shared memory now";
  EXPECT_GT(Make()->huge_bytes(), 0U);
}

TEST(HostSegment, HasNoHugePagesWhenNoneAreWanted) {
  const auto segment = Make(kBytes, {.huge_pages = false});
  EXPECT_EQ(segment->huge_bytes(), 0U);
  EXPECT_EQ(SmapsKb(segment->data(), "ShmemPmdMapped:"), 0U);
}

absl::StatusCode MakeWithoutDescriptors() {
  rlimit limit = {};
  limit.rlim_cur = limit.rlim_max = 3;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return HostSegment::Create(1, kBytes, {}).status().code();
}

TEST(HostSegment, WithoutADescriptorLeftIsResourceExhausted) {
  EXPECT_EXIT(::_exit(MakeWithoutDescriptors() == absl::StatusCode::kResourceExhausted ? 0 : 1),
              testing::ExitedWithCode(0), "");
}

TEST(HostSegment, IsHeldByNobodyAtFirst) { EXPECT_FALSE(Make()->HeldByOthers()); }

TEST(HostSegment, IsHeldWhileADescriptorIsOpen) {
  const auto segment = Make();
  ASSERT_OK(segment->Seal());
  absl::StatusOr<UniqueFd> client = segment->OpenReadOnly();
  ASSERT_OK(client);
  EXPECT_TRUE(segment->HeldByOthers());
  client->Reset();
  EXPECT_FALSE(segment->HeldByOthers());
}

TEST(HostSegment, IsHeldWhileOnlyAMappingIsLeft) {
  for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
    const auto segment = Make();
    ASSERT_OK(segment->Seal());
    absl::StatusOr<UniqueFd> client = segment->OpenReadOnly();
    ASSERT_OK(client);
    Mapping mapping = Map(*client, PROT_READ, flags);
    client->Reset();
    EXPECT_TRUE(segment->HeldByOthers());
    mapping.Reset();
    EXPECT_FALSE(segment->HeldByOthers());
  }
}

TEST(HostSegment, IsHeldWhileADescriptorIsOnItsWay) {
  const auto segment = Make();
  ASSERT_OK(segment->Seal());
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd left(ends[0]);
  UniqueFd right(ends[1]);
  {
    ASSERT_OK_AND_ASSIGN(const UniqueFd client, segment->OpenReadOnly());
    const int fds[] = {client.get()};
    const std::byte one[] = {std::byte{1}};
    ASSERT_OK(SendWithFds(left.get(), one, fds, Deadline::max()));
  }
  EXPECT_TRUE(segment->HeldByOthers());
  right.Reset();
  EXPECT_FALSE(segment->HeldByOthers());
}

TEST(HostSegment, IsHeldWhileAnotherProcessMapsIt) {
  const auto segment = Make();
  ASSERT_OK(segment->Seal());
  absl::StatusOr<UniqueFd> client = segment->OpenReadOnly();
  ASSERT_OK(client);
  int ready[2] = {-1, -1};
  int leave[2] = {-1, -1};
  ASSERT_EQ(::pipe(ready) | ::pipe(leave), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Mapping mapping = Map(*client, PROT_READ, MAP_SHARED);
    client->Reset();
    char byte = mapping.valid() ? 1 : 0;
    if (::write(ready[1], &byte, 1) != 1 || ::read(leave[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);
  }
  client->Reset();
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(segment->HeldByOthers());
  ASSERT_EQ(::write(leave[1], &byte, 1), 1);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(segment->HeldByOthers());
  for (const int fd : {ready[0], ready[1], leave[0], leave[1]}) ::close(fd);
}

TEST(HostSegment, ATrustedDaemonsDuplicateAndMappingDoNotCount) {
  const auto segment = Make();
  ASSERT_OK_AND_ASSIGN(const UniqueFd duplicate, segment->DuplicateOriginal());
  const Mapping mapping = Map(duplicate, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  EXPECT_FALSE(segment->HeldByOthers());
}

TEST(HostSegment, MappingsMadeBeforeTheSealStayWritableAndNewOnesAreRefused) {
  const auto segment = Make();
  ASSERT_OK_AND_ASSIGN(const UniqueFd duplicate, segment->DuplicateOriginal());
  const Mapping before = Map(duplicate, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_OK(segment->Seal());
  before.data()[5] = std::byte{42};
  EXPECT_EQ(segment->data()[5], std::byte{42});
  EXPECT_FALSE(Map(duplicate, PROT_READ | PROT_WRITE, MAP_SHARED).valid());
}

TEST(HostSegment, UnsealedMemoryIsNotHandedOutForReading) {
  EXPECT_FALSE(Make()->OpenReadOnly().ok());
}

TEST(HostSegment, SealedMemoryIsNotHandedOutForWriting) {
  const auto segment = Make();
  ASSERT_OK(segment->Seal());
  EXPECT_FALSE(segment->OpenReadWrite().ok());
}

TEST(HostSegment, ReadingFromAFileIntoSealedMemoryWorks) {
  const auto segment = Make();
  ASSERT_OK(segment->Seal());
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::pread(file.get(), segment->data(), 4, 0), 4);
  EXPECT_EQ(segment->data()[1], std::byte{'E'});
}

// Runs `check` as a user whom file modes bind, in a process of its own.
void ExpectAsOrdinaryUser(bool (*check)()) {
  EXPECT_EXIT(
      {
        if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
        ::prctl(PR_SET_DUMPABLE, 0);
        ::_exit(check() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

std::unique_ptr<HostSegment> MakeSealed(const std::string& folder = "") {
  auto segment = HostSegment::Create(1, kHugePageBytes, {.huge_pages = false}, folder);
  return segment.ok() && (*segment)->Seal().ok() ? *std::move(segment) : nullptr;
}

// A reader takes everybody's permission away; memory that was handed out goes on to later readers.
bool OpensAgainAfterAReaderForbadeIt(const std::string& folder) {
  const auto segment = MakeSealed(folder);
  const auto reader = segment->OpenReadOnly();
  if (!reader.ok() || ::fchmod(reader->get(), 0) != 0) return false;
  return segment->OpenReadOnly().ok() && segment->sealed();
}

TEST(HostSegment, OpensAgainAfterAReaderTookThePermissionsAway) {
  ExpectAsOrdinaryUser([] { return OpensAgainAfterAReaderForbadeIt(""); });
  ExpectAsOrdinaryUser([] { return OpensAgainAfterAReaderForbadeIt("/dev/shm"); });
}

TEST(HostSegment, OpensAgainWhileAReaderTakesThePermissionsAwayAllTheTime) {
  ExpectAsOrdinaryUser([] {
    const auto segment = MakeSealed();
    const auto reader = segment->OpenReadOnly();
    std::atomic<bool> stop = false;
    std::atomic<int> rounds = 0;
    std::thread spoiler([&] {
      for (; !stop; ++rounds) ::fchmod(reader->get(), 0);
    });
    bool opened = true;
    for (int i = 0; i < 100 || rounds < 100; ++i) opened = opened && segment->OpenReadOnly().ok();
    stop = true;
    spoiler.join();
    return opened;
  });
}

TEST(HostSegment, IsAdoptedAlthoughAReaderTookThePermissionsAway) {
  ExpectAsOrdinaryUser([] {
    const auto segment = MakeSealed();
    const auto reader = segment->OpenReadOnly();
    auto original = segment->DuplicateOriginal();
    if (!original.ok() || ::fchmod(reader->get(), 0) != 0) return false;
    return HostSegment::Adopt(2, kHugePageBytes, *std::move(original)).ok();
  });
}

TEST(OwnershipCheck, WorksOnThisKernel) { EXPECT_TRUE(OwnershipCheckWorks()); }

TEST(OwnershipCheck, WorksForAnOrdinaryUserThatIsNotDumpable) {
  ExpectAsOrdinaryUser([] { return MakeSealed()->OpenReadOnly().ok() && OwnershipCheckWorks(); });
}

TEST(OwnershipCheck, SurvivesSomeoneOpeningTheMemoryAtThatMoment) {
  // The kernel signals the holder of a lease when someone opens the file. The signal's default
  // action would end this process.
  const auto segment = Make(kHugePageBytes);
  ASSERT_OK(segment->Seal());
  std::atomic<bool> stop = false;
  std::thread opener([&] {
    while (!stop) segment->OpenReadOnly().IgnoreError();
  });
  for (int i = 0; i < 200'000; ++i) segment->HeldByOthers();
  stop = true;
  opener.join();
  EXPECT_FALSE(segment->HeldByOthers());
}

}  // namespace
}  // namespace ckptd

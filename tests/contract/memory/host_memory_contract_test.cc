// The contract on host memory, and properties that only descriptors of files have.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>

#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "server/memory/host/host_memory.h"
#include "tests/contract/memory/memory_contract.h"
#include "tests/contract/memory/outliving_memory_contract.h"
#include "tests/contract/memory/reused_memory_contract.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kSegment = 2 * kHugePageBytes;

absl::StatusOr<std::unique_ptr<MemoryBackend>> MakeHost(uint64_t budget, bool huge_pages,
                                                        uint64_t arena,
                                                        const std::string& folder = "") {
  return HostMemory::Create({.budget_bytes = budget,
                             .arena_target_bytes = arena,
                             .segment_bytes = kSegment,
                             .huge_pages = huge_pages,
                             .folder = folder});
}

// Maps segments as client/cpp does.
class MappedSegments final : public ClientMemory {
 public:
  explicit MappedSegments(Mapping mapping) : mapping_(std::move(mapping)) {}
  static absl::StatusOr<std::unique_ptr<ClientMemory>> Attach(SlabHandle handle, AttachMode mode) {
    const MapMode map = mode == AttachMode::kShared    ? MapMode::kSharedReadOnly
                        : mode == AttachMode::kPrivate ? MapMode::kPrivate
                                                       : MapMode::kSharedWritable;
    CKPTD_ASSIGN_OR_RETURN(Mapping mapping,
                           MapSlab(handle.fds, handle.segment_bytes, {.mode = map}));
    return std::make_unique<MappedSegments>(std::move(mapping));
  }
  uint64_t bytes() const override { return mapping_.bytes(); }
  std::vector<std::byte> Read(uint64_t offset, uint64_t bytes) const override {
    const auto part = mapping_.span().subspan(offset, bytes);
    return {part.begin(), part.end()};
  }
  void Write(uint64_t offset, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), mapping_.data() + offset);
  }

 private:
  Mapping mapping_;
};

MemoryCase HugePages() {
  return {"HostHugePages", [](uint64_t budget) { return MakeHost(budget, true, 0); }, kSegment,
          MappedSegments::Attach};
}

MemoryCase SmallPages() {
  return {"HostSmallPages", [](uint64_t budget) { return MakeHost(budget, false, 0); }, kSegment,
          MappedSegments::Attach};
}

MemoryCase Files() {
  static const TempFolder folder("/dev/shm");
  return {"HostFiles", [](uint64_t budget) { return MakeHost(budget, true, 0, folder.path()); },
          kSegment, MappedSegments::Attach};
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoryContract,
                         testing::Values(HugePages(), SmallPages(), Files()), MemoryCaseName);
INSTANTIATE_TEST_SUITE_P(Backends, OutlivingMemoryContract,
                         testing::Values(HugePages(), SmallPages()), MemoryCaseName);
INSTANTIATE_TEST_SUITE_P(Backends, ReusedMemoryContract,
                         testing::Values(HugePages(), SmallPages(), Files()), MemoryCaseName);

size_t OpenFds() {
  size_t count = 0;
  for (int fd = 0; fd < 8192; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// A read-only descriptor of a sealed slab, as a client has it.
class ClientOfSealedMemory : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(backend_, MakeHost(4 * kSegment, true, 0));
    ASSERT_OK_AND_ASSIGN(slab_, backend_->Allocate(kSegment, AttachMode::kShared));
    ASSERT_OK(backend_->Seal(*slab_));
    ASSERT_OK_AND_ASSIGN(handle_, backend_->Export(*slab_, AttachMode::kShared));
  }

  int fd() const { return handle_.fds[0].get(); }
  UniqueFd Reopened() const {
    return UniqueFd(::open(("/proc/self/fd/" + std::to_string(fd())).c_str(), O_RDWR | O_CLOEXEC));
  }
  // The error of a call that must fail.
  static int ErrorOf(bool failed) { return failed ? errno : 0; }

  std::unique_ptr<MemoryBackend> backend_;
  std::unique_ptr<Slab> slab_;
  SlabHandle handle_;
};

TEST_F(ClientOfSealedMemory, CannotMapItWritable) {
  void* address = ::mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
  EXPECT_EQ(ErrorOf(address == MAP_FAILED), EACCES);
}

TEST_F(ClientOfSealedMemory, CannotMakeItsMappingWritable) {
  void* address = ::mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, fd(), 0);
  ASSERT_NE(address, MAP_FAILED);
  const Mapping mapping(address, kSegment);
  EXPECT_EQ(ErrorOf(::mprotect(address, kSegment, PROT_READ | PROT_WRITE) != 0), EACCES);
}

TEST_F(ClientOfSealedMemory, CannotWriteToTheDescriptor) {
  EXPECT_EQ(ErrorOf(::pwrite(fd(), "x", 1, 0) < 0), EBADF);
}

TEST_F(ClientOfSealedMemory, CannotMapAReopenedDescriptorWritable) {
  const UniqueFd reopened = Reopened();
  ASSERT_TRUE(reopened.valid());
  void* address = ::mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, reopened.get(), 0);
  EXPECT_EQ(ErrorOf(address == MAP_FAILED), EPERM);
}

TEST_F(ClientOfSealedMemory, CannotMakeAReopenedReadOnlyMappingWritable) {
  const UniqueFd reopened = Reopened();
  void* address = ::mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, reopened.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  const Mapping mapping(address, kSegment);
  EXPECT_EQ(ErrorOf(::mprotect(address, kSegment, PROT_READ | PROT_WRITE) != 0), EACCES);
}

TEST_F(ClientOfSealedMemory, CannotWriteToAReopenedDescriptor) {
  EXPECT_EQ(ErrorOf(::pwrite(Reopened().get(), "x", 1, 0) < 0), EPERM);
}

TEST_F(ClientOfSealedMemory, CannotTruncateIt) {
  EXPECT_EQ(ErrorOf(::ftruncate(Reopened().get(), 0) != 0), EPERM);
}

TEST_F(ClientOfSealedMemory, CannotPunchAHoleInIt) {
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  EXPECT_EQ(ErrorOf(::fallocate(Reopened().get(), mode, 0, 4096) != 0), EPERM);
}

TEST_F(ClientOfSealedMemory, CannotTakeItsPagesAway) {
  void* address = ::mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, fd(), 0);
  ASSERT_NE(address, MAP_FAILED);
  const Mapping mapping(address, kSegment);
  EXPECT_NE(ErrorOf(::madvise(address, kSegment, MADV_REMOVE) != 0), 0);
}

TEST(HostMemoryContract, AnExclusiveClientCannotTruncateUnderTheDaemon) {
  ASSERT_OK_AND_ASSIGN(const auto backend, MakeHost(4 * kSegment, true, 0));
  ASSERT_OK_AND_ASSIGN(const auto slab, backend->Allocate(kSegment, AttachMode::kExclusive));
  ASSERT_OK_AND_ASSIGN(const SlabHandle handle, backend->Export(*slab, AttachMode::kExclusive));
  EXPECT_NE(::ftruncate(handle.fds[0].get(), 0), 0);
}

TEST(HostMemoryContract, AThousandCyclesLeaveNoDescriptorBehind) {
  ASSERT_OK_AND_ASSIGN(const auto backend, MakeHost(8 * kSegment, true, 0));
  size_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    // A few warm-up rounds fill the pool. After that nothing may grow.
    if (i == 20) before = OpenFds();
    const bool exclusive = i % 5 == 4;
    const AttachMode mode = exclusive ? AttachMode::kExclusive : AttachMode::kShared;
    ASSERT_OK_AND_ASSIGN(auto slab, backend->Allocate(kSegment + 512, mode));
    if (!exclusive) {
      ASSERT_OK(backend->Seal(*slab));
    }
    ASSERT_OK(backend->Export(*slab, mode));
    if (exclusive) backend->TransferOwnership(std::move(slab));
  }
  EXPECT_LE(OpenFds(), before + 4);
}

TEST(HostMemoryContract, ThreadsMayAllocateAndReturnAtOnce) {
  ASSERT_OK_AND_ASSIGN(const auto backend, MakeHost(12 * kSegment, true, 6 * kSegment));
  std::atomic<int> spoiled = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&backend, &spoiled, t] {
      for (int i = 0; i < 50; ++i) {
        const uint64_t bytes = kSegment * static_cast<uint64_t>(1 + (i + t) % 3) - 512;
        auto slab = backend->Allocate(bytes, AttachMode::kShared);
        if (!slab.ok()) continue;
        const auto mark = static_cast<std::byte>(t + 1);
        for (const auto& segment : (*slab)->view().segments) segment[0] = mark;
        backend->Usage();
        for (const auto& segment : (*slab)->view().segments) spoiled += segment[0] != mark;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(spoiled, 0);
  EXPECT_EQ(backend->Usage().used, 0U);
}

}  // namespace
}  // namespace ckptd

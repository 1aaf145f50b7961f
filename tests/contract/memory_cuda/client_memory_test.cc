// A C++ client may free a GPU's memory in any thread, in any order, before and after the daemon
// frees its own mapping, and at the end of its process.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "client/cpp/attach.h"
#include "client/cpp/device_memory.h"
#include "common/cuda/stream.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/testing/cuda.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class ClientMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, CudaMemory::Create(TestGpu(), {.budget_bytes = 64 << 20,
                                                                 .staging_bytes = 8 << 20}));
  }
  // A slab full of `fill` for clients of that mode.
  std::unique_ptr<Slab> ReleaseStaging(std::byte fill, AttachMode mode) {
    auto slab = memory_->Allocate(kBytes, mode).value();
    WriteBytes(slab->view(), 0, std::vector<std::byte>(kBytes, fill));
    if (mode != AttachMode::kExclusive) {
      EXPECT_OK(memory_->Seal(*slab));
    }
    return slab;
  }
  DeviceMemory Import(Slab& slab, AttachMode mode) {
    const SlabHandle handle = memory_->Export(slab, mode).value();
    return DeviceMemory::Import(handle.fds.front(), handle.device, handle.segment_bytes.front(),
                                mode).value();
  }
  static uint64_t Free() { return TestGpu()->FreeBytes().value(); }

  std::unique_ptr<CudaMemory> memory_;
};

bool IsFullOf(const DeviceMemory& memory, std::byte fill) {
  std::vector<std::byte> bytes(kBytes);
  if (!memory.Read(0, bytes).ok()) return false;
  return std::all_of(bytes.begin(), bytes.end(), [fill](std::byte byte) { return byte == fill; });
}

TEST_F(ClientMemoryTest, IsLetGoOfByAnyThreadInAnyOrder) {
  const uint64_t before = Free();
  struct Held {
    DeviceMemory memory;
    std::byte fill;
  };
  std::vector<Held> held;
  for (const AttachMode mode : {AttachMode::kShared, AttachMode::kPrivate, AttachMode::kExclusive}) {
    const auto fill = static_cast<std::byte>(17 + static_cast<int>(mode));
    const auto slab = ReleaseStaging(fill, mode);
    const int clients = mode == AttachMode::kExclusive ? 1 : 3;
    for (int i = 0; i < clients; ++i) held.push_back({Import(*slab, mode), fill});
    // The daemon's mapping ends here.
  }
  std::shuffle(held.begin(), held.end(), std::mt19937(7));
  while (!held.empty()) {
    // The memory must be freed before the next check.
    std::thread([last = std::move(held.back())]() mutable { last.memory = DeviceMemory(); }).join();
    held.pop_back();
    for (const Held& one : held) EXPECT_TRUE(IsFullOf(one.memory, one.fill));
  }
  EXPECT_EQ(Free(), before);
}

TEST_F(ClientMemoryTest, IsLetGoOfBySeveralThreadsAtOnce) {
  const uint64_t before = Free();
  for (int round = 0; round < 20; ++round) {
    auto slab = ReleaseStaging(std::byte{3}, AttachMode::kShared);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([memory = Import(*slab, AttachMode::kShared)]() mutable {
        EXPECT_TRUE(IsFullOf(memory, std::byte{3}));
        memory = DeviceMemory();
      });
    }
    slab.reset();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(Free(), before);
}

TEST_F(ClientMemoryTest, IsReachedByTheOtherGpusOfTheProcess) {
  const std::shared_ptr<CudaDevice> other = TestGpu(1);
  ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Make(other));
  for (const AttachMode mode : {AttachMode::kShared, AttachMode::kPrivate, AttachMode::kExclusive}) {
    const auto slab = ReleaseStaging(std::byte{11}, mode);
    const DeviceMemory memory = Import(*slab, mode);
    std::byte last{0};
    const CudaScope scope(*other);
    ASSERT_EQ(other->driver().MemcpyDtoHAsync(&last, memory.address() + kBytes - 1, 1,
                                              stream.get()),
              CUDA_SUCCESS);
    ASSERT_OK(stream.Wait(std::chrono::seconds(60)));
    EXPECT_EQ(last, std::byte{11});
  }
}

// One end of a pipe is the lease; the other sees when it ends.
class ClientLeaseTest : public ClientMemoryTest {
 protected:
  void SetUp() override {
    ClientMemoryTest::SetUp();
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    daemon_ = UniqueFd(ends[0]);
    lease_ = UniqueFd(ends[1]);
  }
  bool Ended() const {
    pollfd end = {daemon_.get(), 0, 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
  }

  UniqueFd daemon_;
  UniqueFd lease_;
};

TEST_F(ClientLeaseTest, EndsWithTheMemory) {
  const auto slab = ReleaseStaging(std::byte{9}, AttachMode::kShared);
  DeviceMemory memory = Import(*slab, AttachMode::kShared);
  memory.Reset(std::move(lease_));
  EXPECT_TRUE(Ended());
}

// Otherwise the daemon would reuse the memory while that work runs.
TEST_F(ClientLeaseTest, GoesOnWhileWorkThatWasGivenUpMayReachTheMemory) {
  const auto slab = ReleaseStaging(std::byte{9}, AttachMode::kShared);
  DeviceMemory memory = Import(*slab, AttachMode::kShared);
  std::optional<CudaClaim> work(TestGpu());
  memory.Reset(std::move(lease_));
  EXPECT_FALSE(memory.valid());
  EXPECT_FALSE(Ended());
  work.reset();
  EXPECT_TRUE(Ended());
}

TEST_F(ClientLeaseTest, GoesOnAsLongWhereAttachingFails) {
  AttachRequest request;
  request.device_uuid = TestGpu()->info().uuid;
  request.ipc_handle = std::string(64, 'x');
  request.segment_bytes = {kBytes};
  LeasedSegments segments;
  segments.lease = std::move(lease_);
  std::optional<CudaClaim> work(TestGpu());
  EXPECT_FALSE(MapSegments(std::move(segments), request).ok());
  EXPECT_FALSE(Ended());
  work.reset();
  EXPECT_TRUE(Ended());
}

using ClientMemoryDeathTest = ClientMemoryTest;

TEST_F(ClientMemoryDeathTest, MayLiveUntilTheProcessHasEnded) {
  // a new process, because this driver does not survive a fork
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hold_and_exit = [this] {
    const auto slab = ReleaseStaging(std::byte{5}, AttachMode::kShared);
    static DeviceMemory last = Import(*slab, AttachMode::kShared);
    std::exit(IsFullOf(last, std::byte{5}) ? 0 : 1);
  };
  EXPECT_EXIT(hold_and_exit(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ckptd

#include "server/comm/host/host_peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "server/comm/host/peer_socket.h"
#include "server/memory/host/host_memory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kSegment = 2 * kHugePageBytes;
const std::string kSecret = "0123456789abcdef0123456789abcdef";

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

PeerSlab Describe(const Slab& slab, const std::string& endpoint) {
  PeerSlab described;
  described.rank = 3;
  described.incarnation = "first";
  described.endpoint = endpoint;
  described.host = "here";
  for (const Segment& segment : slab.segments()) {
    described.segments.push_back({segment.id, segment.bytes});
  }
  return described;
}

// Another daemon with host memory and its peer socket.
class Daemon {
 public:
  explicit Daemon(const std::string& path) {
    auto memory = HostMemory::Create({.budget_bytes = 16 * kSegment, .segment_bytes = kSegment});
    EXPECT_OK(memory);
    memory_ = std::move(*memory);
    auto socket = PeerSocket::Start({.path = path}, [this](uint64_t id) {
      ++asked_;
      return memory_->OriginalFd(id);
    });
    EXPECT_OK(socket);
    socket_ = std::move(*socket);
    socket_->SetSecret(kSecret);
  }
  HostMemory& memory() { return *memory_; }
  int asked() const { return asked_; }  // segments that peers asked for

 private:
  std::atomic<int> asked_ = 0;
  std::unique_ptr<HostMemory> memory_;
  std::unique_ptr<PeerSocket> socket_;
};

class HostPeerMemoryTest : public testing::Test {
 protected:
  HostPeerMemoryTest() {
    daemon_ = std::make_unique<Daemon>(path_);
    leader_.SetSecret(kSecret);
  }

  std::unique_ptr<Slab> Allocate(uint64_t bytes) {
    auto slab = daemon_->memory().Allocate(bytes, AttachMode::kShared);
    EXPECT_OK(slab);
    return std::move(*slab);
  }
  PeerSlab Describe(const Slab& slab) const { return ckptd::Describe(slab, path_); }

  const TempFolder directory_;
  const std::string path_ = directory_ / "peer.sock";
  std::unique_ptr<Daemon> daemon_;
  HostPeerMemory leader_{"here"};
};

TEST_F(HostPeerMemoryTest, WhatTheLeaderWritesIsInTheSlab) {
  const auto slab = Allocate(2 * kSegment + 1024);
  ASSERT_OK_AND_ASSIGN(const SlabView view, leader_.Map(Describe(*slab), Soon()));
  ASSERT_EQ(view.segments.size(), 3U);
  for (size_t i = 0; i < 3; ++i) view.segments[i].back() = static_cast<std::byte>(i + 1);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(slab->view().segments[i].back(), static_cast<std::byte>(i + 1));
  }
}

TEST_F(HostPeerMemoryTest, ViewsAreCutToTheSlabsPart) {
  const auto slab = Allocate(kSegment + 1024);
  ASSERT_OK_AND_ASSIGN(const SlabView view, leader_.Map(Describe(*slab), Soon()));
  EXPECT_EQ(view.segments[1].size(), 1024U);
}

TEST_F(HostPeerMemoryTest, AnEmptySlabIsAnEmptyView) {
  PeerSlab slab;
  slab.host = "here";
  ASSERT_OK_AND_ASSIGN(const SlabView view, leader_.Map(slab, Soon()));
  EXPECT_TRUE(view.segments.empty());
}

TEST_F(HostPeerMemoryTest, MappedSegmentsAreNotAskedForAgainEvenSealed) {
  const auto slab = Allocate(kSegment);
  ASSERT_OK(leader_.Map(Describe(*slab), Soon()));
  ASSERT_OK(daemon_->memory().Seal(*slab));
  ASSERT_OK_AND_ASSIGN(const SlabView view, leader_.Map(Describe(*slab), Soon()));
  view.segments[0][0] = std::byte{77};
  EXPECT_EQ(slab->view().segments[0][0], std::byte{77});
  EXPECT_EQ(daemon_->asked(), 1);
}

TEST_F(HostPeerMemoryTest, MappingsOfTheLeaderDoNotKeepMemoryFromReuse) {
  auto slab = Allocate(kSegment);
  ASSERT_OK(leader_.Map(Describe(*slab), Soon()));
  ASSERT_OK(daemon_->memory().Seal(*slab));
  ASSERT_OK(daemon_->memory().Export(*slab, AttachMode::kShared));
  const uint64_t id = slab->segments()[0].id;
  slab.reset();
  EXPECT_EQ(Allocate(kSegment)->segments()[0].id, id);
}

TEST_F(HostPeerMemoryTest, MemorySealedBeforeItWasMappedIsAnErrorThatNamesTheRank) {
  const auto slab = Allocate(kSegment);
  ASSERT_OK(daemon_->memory().Seal(*slab));
  const auto view = leader_.Map(Describe(*slab), Soon());
  EXPECT_THAT(view, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kRankFailed));
  EXPECT_THAT(view, Says("rank 3"));
  EXPECT_EQ(FactsOf(view.status()).at("rank"), "3");
}

TEST_F(HostPeerMemoryTest, ANewIncarnationDropsTheMappingsOfTheOldOne) {
  const auto first = Allocate(4 * kSegment);
  ASSERT_OK(leader_.Map(Describe(*first), Soon()));
  const auto second = Allocate(kSegment);
  PeerSlab described = Describe(*second);
  described.incarnation = "second";
  ASSERT_OK(leader_.Map(described, Soon()));
  EXPECT_EQ(leader_.MappedBytes(3), kSegment);
}

TEST_F(HostPeerMemoryTest, TheSameIdInANewIncarnationIsOtherMemory) {
  const auto slab = Allocate(kSegment);
  PeerSlab described = Describe(*slab);
  ASSERT_OK(leader_.Map(described, Soon()));
  described.incarnation = "second";
  ASSERT_OK(leader_.Map(described, Soon()));
  EXPECT_EQ(daemon_->asked(), 2);
}

TEST_F(HostPeerMemoryTest, KeepOnlyDropsWhatTheRankNoLongerOwns) {
  const auto first = Allocate(kSegment);
  const auto second = Allocate(2 * kSegment);
  ASSERT_OK(leader_.Map(Describe(*first), Soon()));
  ASSERT_OK(leader_.Map(Describe(*second), Soon()));
  EXPECT_EQ(leader_.KeepOnly(3, {first->segments()[0].id}), 2 * kSegment);
  EXPECT_EQ(leader_.MappedBytes(3), kSegment);
}

TEST_F(HostPeerMemoryTest, WhatItsDaemonHasGivenBackIsDroppedAndTheRestStays) {
  const auto kept = Allocate(kSegment);
  auto released = Allocate(2 * kSegment);
  ASSERT_OK(leader_.Map(Describe(*kept), Soon()));
  ASSERT_OK(leader_.Map(Describe(*released), Soon()));
  leader_.DropReleased(Soon());
  EXPECT_EQ(leader_.MappedBytes(3), 3 * kSegment);
  released.reset();
  EXPECT_EQ(daemon_->memory().Trim(), 2 * kSegment);
  leader_.DropReleased(Soon());
  EXPECT_EQ(leader_.MappedBytes(3), kSegment);
}

TEST_F(HostPeerMemoryTest, ForgetDropsAll) {
  const auto slab = Allocate(kSegment);
  ASSERT_OK(leader_.Map(Describe(*slab), Soon()));
  leader_.Forget(3, "first");
  EXPECT_EQ(leader_.MappedBytes(3), 0U);
}

TEST_F(HostPeerMemoryTest, ForgettingAProcessLateDropsNothingOfTheNextOne) {
  const auto slab = Allocate(kSegment);
  ASSERT_OK(leader_.Map(Describe(*slab), Soon()));
  leader_.Forget(3, "the one before");
  EXPECT_EQ(leader_.MappedBytes(3), kSegment);
}

TEST_F(HostPeerMemoryTest, ARankOnAnotherHostIsRefusedByName) {
  const auto slab = Allocate(kSegment);
  PeerSlab described = Describe(*slab);
  described.host = "elsewhere";
  const auto view = leader_.Map(described, Soon());
  EXPECT_EQ(view.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(view, Says("rank 3: it runs on another host"));
}

TEST_F(HostPeerMemoryTest, MemoryBehindASocketThatCannotBeReachedCannotBeMapped) {
  const auto slab = Allocate(kSegment);
  PeerSlab described = Describe(*slab);
  described.endpoint = directory_ / "nobody.sock";
  EXPECT_THAT(leader_.Map(described, Soon()),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kRankFailed));
}

TEST_F(HostPeerMemoryTest, ARankThatDoesNotAnswerIsLostAtTheDeadline) {
  const std::string mute = directory_ / "mute.sock";
  ASSERT_OK_AND_ASSIGN(const UnixListener listener, UnixListener::Open(mute, 0600));
  const auto slab = Allocate(kSegment);
  PeerSlab described = Describe(*slab);
  described.endpoint = mute;
  const auto shortly = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  EXPECT_THAT(leader_.Map(described, shortly),
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  ::unlink(mute.c_str());
}

TEST_F(HostPeerMemoryTest, ASegmentSmallerThanItsDescriptionIsRefusedAndNotKept) {
  const auto slab = Allocate(kSegment);
  PeerSlab described = Describe(*slab);
  described.segments[0].bytes = kSegment + 1;
  EXPECT_THAT(leader_.Map(described, Soon()), Says("should hold"));
  EXPECT_EQ(leader_.MappedBytes(3), 0U);
}

TEST_F(HostPeerMemoryTest, ASegmentThatIsInTheSlabTwiceIsRefused) {
  const auto slab = Allocate(kSegment);
  PeerSlab described = Describe(*slab);
  described.segments.push_back(described.segments[0]);
  EXPECT_THAT(leader_.Map(described, Soon()), Says("twice"));
}

TEST_F(HostPeerMemoryTest, MoreSegmentsThanOneRequestAsksForAreAllMapped) {
  constexpr size_t kMany = 300;
  const std::string path = directory_ / "many.sock";
  const auto one = Allocate(kSegment);
  auto socket = PeerSocket::Start({.path = path}, [](uint64_t) -> absl::StatusOr<UniqueFd> {
    UniqueFd fd(::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (::ftruncate(fd.get(), 4096) != 0) return absl::InternalError("ftruncate");
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) return absl::InternalError("sealing");
    return fd;
  });
  ASSERT_OK(socket);
  (*socket)->SetSecret(kSecret);
  PeerSlab described = Describe(*one);
  described.endpoint = path;
  described.segments.clear();
  for (size_t i = 0; i < kMany; ++i) described.segments.push_back({i + 1, 4096});
  ASSERT_OK_AND_ASSIGN(const SlabView view, leader_.Map(described, Soon()));
  EXPECT_EQ(view.segments.size(), kMany);
}

// The daemon is another process. It describes its slab over a pipe, and reports its memory's
// content after the leader has written to it.
TEST(HostPeerMemoryAcrossProcesses, TheLeaderFillsAnotherProcessesMemory) {
  const TempFolder folder;
  const std::string socket_path = folder / "peer.sock";
  int up[2] = {-1, -1};
  int down[2] = {-1, -1};
  ASSERT_EQ(::pipe(up) | ::pipe(down), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(down[1]);
    int result = 1;
    {
      Daemon daemon(socket_path);
      auto slab = daemon.memory().Allocate(kSegment, AttachMode::kShared);
      const uint64_t id = (*slab)->segments()[0].id;
      char go = 0;
      if (::write(up[1], &id, sizeof(id)) == sizeof(id) && ::read(down[0], &go, 1) == 1) {
        result = (*slab)->view().segments[0][kSegment - 1] == std::byte{99} ? 0 : 3;
      }
    }
    ::_exit(result);
  }
  uint64_t id = 0;
  ASSERT_EQ(::read(up[0], &id, sizeof(id)), static_cast<ssize_t>(sizeof(id)));
  HostPeerMemory leader("here");
  leader.SetSecret(kSecret);
  PeerSlab slab;
  slab.rank = 1;
  slab.endpoint = socket_path;
  slab.host = "here";
  slab.segments = {{id, kSegment}};
  const auto view = leader.Map(slab, Soon());
  EXPECT_OK(view);
  if (view.ok()) view->segments[0].back() = std::byte{99};
  EXPECT_EQ(::write(down[1], "g", 1), 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int fd : {up[0], up[1], down[0], down[1]}) ::close(fd);
}

}  // namespace
}  // namespace ckptd

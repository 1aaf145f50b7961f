// Wrong answers of another daemon's memory socket, and how they are handled.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "server/comm/host/host_peer_memory.h"
#include "server/comm/host/peer_socket.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr unsigned kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;
const std::string kSecret = "0123456789abcdef0123456789abcdef";

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

UniqueFd Memfd(uint64_t bytes, unsigned seals = kFixedSize) {
  UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

size_t OpenFds() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

class LyingPeerTest : public testing::Test {
 protected:
  LyingPeerTest() {
    slab_.rank = 3;
    slab_.incarnation = "first";
    slab_.endpoint = directory_ / "peer.sock";
    slab_.host = "here";
    leader_.SetSecret(kSecret);
  }

  // A daemon that always answers with `segment`, and says that the slab takes `bytes` of it.
  absl::StatusOr<SlabView> MapWhatIsGiven(UniqueFd segment, uint64_t bytes) {
    given_ = std::move(segment);
    if (socket_ == nullptr) {
      auto socket = PeerSocket::Start({.path = slab_.endpoint}, [this](uint64_t) {
        return UniqueFd(::fcntl(given_.get(), F_DUPFD_CLOEXEC, 0));
      });
      EXPECT_OK(socket);
      socket_ = std::move(*socket);
      socket_->SetSecret(kSecret);
    }
    slab_.segments = {{1, bytes}};
    return leader_.Map(slab_, Soon());
  }
  // Memory that `given_` occupies.
  uint64_t TakenBytes() const {
    struct stat info = {};
    EXPECT_EQ(::fstat(given_.get(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }

  const TempFolder directory_;
  PeerSlab slab_;
  UniqueFd given_;
  std::unique_ptr<PeerSocket> socket_;
  HostPeerMemory leader_{"here"};
};

TEST_F(LyingPeerTest, AMemfdOfFixedSizeIsMapped) {
  ASSERT_OK_AND_ASSIGN(const SlabView view, MapWhatIsGiven(Memfd(2 * kPage), kPage));
  EXPECT_EQ(view.segments[0].size(), kPage);
}

TEST_F(LyingPeerTest, MemoryThatItsOwnerCouldCutIsRefused) {
  for (const unsigned seals : {0, F_SEAL_GROW}) {
    const auto view = MapWhatIsGiven(Memfd(kPage, seals), kPage);
    EXPECT_THAT(view, FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
    EXPECT_THAT(view, Says("not a memfd with a sealed size"));
    EXPECT_EQ(FactsOf(view.status()).at("rank"), "3");
  }
}

TEST_F(LyingPeerTest, WhatIsNoMemoryIsRefused) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd other(ends[1]);
  EXPECT_THAT(MapWhatIsGiven(UniqueFd(ends[0]), kPage), Says("not a memfd"));
  EXPECT_THAT(MapWhatIsGiven(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), kPage),
              Says("not a memfd"));
  EXPECT_THAT(MapWhatIsGiven(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), kPage),
              Says("not a memfd"));
}

TEST_F(LyingPeerTest, AFileOnDiskIsRefused) {
  const std::string path = directory_ / "disk";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), kPage), 0);
  ::unlink(path.c_str());
  EXPECT_THAT(MapWhatIsGiven(std::move(file), kPage), Says("not a memfd"));
}

TEST_F(LyingPeerTest, MemoryForReadingOnlyIsRefused) {
  const UniqueFd writable = Memfd(kPage);
  const std::string path = "/proc/self/fd/" + std::to_string(writable.get());
  EXPECT_THAT(MapWhatIsGiven(UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), kPage),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kRankFailed));
}

TEST_F(LyingPeerTest, LessMemoryThanAnnouncedIsRefused) {
  EXPECT_THAT(MapWhatIsGiven(Memfd(kPage), kPage + 1), Says("should hold 4097 bytes"));
  EXPECT_THAT(MapWhatIsGiven(Memfd(0), kPage), Says("not possible"));
  EXPECT_THAT(MapWhatIsGiven(Memfd(kPage), uint64_t{1} << 63), Says("should hold"));
}

// A segment may be larger than the slab's part. A large size costs its owner nothing.
TEST_F(LyingPeerTest, PagesAreMadeOnlyOfWhatTheSlabTakes) {
  ASSERT_OK(MapWhatIsGiven(Memfd(64 * kHugePageBytes), 5 * kPage));
  EXPECT_LE(TakenBytes(), kHugePageBytes);
  slab_.segments[0].bytes = 3 * kHugePageBytes;
  ASSERT_OK(leader_.Map(slab_, Soon()));
  EXPECT_GE(TakenBytes(), 3 * kHugePageBytes);
  EXPECT_LE(TakenBytes(), 4 * kHugePageBytes);
}

TEST_F(LyingPeerTest, NothingOfARefusedAnswerStaysOpenOrMapped) {
  EXPECT_FALSE(MapWhatIsGiven(Memfd(kPage), kPage + 1).ok());
  const size_t before = OpenFds();
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(MapWhatIsGiven(Memfd(kPage, 0), kPage).ok());
    EXPECT_FALSE(MapWhatIsGiven(Memfd(kPage), kPage + 1).ok());
  }
  socket_.reset();  // closes its remaining connections
  EXPECT_LE(OpenFds(), before);
  EXPECT_EQ(leader_.MappedBytes(3), 0U);
}

TEST_F(LyingPeerTest, ADescriptionOfMoreSegmentsThanThereCanBeIsRefused) {
  for (uint64_t id = 0; id <= kMaxPeerSegments; ++id) slab_.segments.push_back({id, kPage});
  EXPECT_THAT(leader_.Map(slab_, Soon()), Says("too many segments"));
}

// Both ends of a connection on which a daemon answers `answer`, with `fds`.
absl::StatusOr<std::vector<UniqueFd>> AskForTwo(const std::string& answer,
                                                const std::vector<int>& fds) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  EXPECT_OK(SendWithFds(theirs.get(), std::as_bytes(std::span(answer)), fds, Soon()));
  ::shutdown(theirs.get(), SHUT_WR);
  return AskPeer(ours.get(), kSecret, std::vector<uint64_t>{7, 8}, Soon());
}

// An answer without error that announces `fds` descriptors, with `remaining` to follow.
std::string Answer(char fds, char remaining) {
  return std::string("CKPM") + std::string(4, '\0') + fds + std::string(3, '\0') + remaining +
         std::string(3, '\0');
}

TEST(LyingPeerProtocol, AnotherNumberOfDescriptorsThanSaidOrAskedIsRefused) {
  const UniqueFd a = Memfd(kPage);
  const std::vector<int> one = {a.get()};
  const std::vector<int> two = {a.get(), a.get()};
  const std::vector<int> three = {a.get(), a.get(), a.get()};
  ASSERT_OK(AskForTwo(Answer(2, 0), two));
  const size_t before = OpenFds();
  const auto refused = Says("other descriptors than were requested");
  EXPECT_THAT(AskForTwo(Answer(2, 0), one), refused);  // fewer than it says
  EXPECT_THAT(AskForTwo(Answer(1, 0), two), refused);  // more than it says
  EXPECT_THAT(AskForTwo(Answer(1, 0), one), refused);  // fewer than were asked for
  EXPECT_THAT(AskForTwo(Answer(1, 9), one), refused);  // more to come than were asked for
  EXPECT_THAT(AskForTwo(Answer(0, 2), {}), refused);   // none at all
  EXPECT_FALSE(AskForTwo(Answer(1, 1), one).ok());     // the announced ones do not follow
  EXPECT_FALSE(AskForTwo(Answer(3, 0), three).ok());   // more than were asked for
  EXPECT_EQ(OpenFds(), before);
}

}  // namespace
}  // namespace ckptd

#include "server/comm/host/peer_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

const std::string kSecret = "0123456789abcdef0123456789abcdef";

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// A descriptor whose content is its id.
absl::StatusOr<UniqueFd> FileWithId(uint64_t id) {
  UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC));
  if (::write(fd.get(), &id, sizeof(id)) != sizeof(id)) return absl::InternalError("write");
  return fd;
}

uint64_t IdIn(const UniqueFd& fd) {
  uint64_t id = 0;
  return ::pread(fd.get(), &id, sizeof(id), 0) == sizeof(id) ? id : ~uint64_t{0};
}

size_t OpenFds() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

class PeerSocketTest : public testing::Test {
 protected:
  PeerSocketTest() { options_.path = directory_ / "peer.sock"; }

  void Start(SegmentLookup lookup = FileWithId) {
    auto server = PeerSocket::Start(options_, std::move(lookup));
    ASSERT_OK(server);
    server_ = std::move(*server);
    server_->SetSecret(kSecret);
  }
  absl::StatusOr<std::vector<UniqueFd>> Fetch(const std::vector<uint64_t>& ids,
                                              const std::string& secret = kSecret) {
    return FetchPeerSegments(options_.path, secret, ids, Soon());
  }
  UniqueFd Connect() {
    auto socket = ConnectUnix(options_.path, Soon());
    EXPECT_OK(socket);
    return socket.ok() ? std::move(*socket) : UniqueFd();
  }
  // Whether the server closes the connection without an answer.
  static bool ClosedInSilence(const UniqueFd& socket) {
    const auto received = RecvWithFds(socket.get(), 1, 0, Soon());
    // Unread bytes of ours turn its close into a reset.
    return received.ok() ? received->bytes.empty()
                         : received.status().code() == absl::StatusCode::kUnavailable;
  }

  const TempFolder directory_;
  PeerSocketOptions options_;
  std::unique_ptr<PeerSocket> server_;
};

TEST_F(PeerSocketTest, GivesTheSegmentsInTheOrderAsked) {
  Start();
  ASSERT_OK_AND_ASSIGN(const auto fds, Fetch({7, 3, 5}));
  ASSERT_EQ(fds.size(), 3U);
  EXPECT_EQ(IdIn(fds[0]), 7U);
  EXPECT_EQ(IdIn(fds[1]), 3U);
  EXPECT_EQ(IdIn(fds[2]), 5U);
}

TEST_F(PeerSocketTest, GivesMoreSegmentsThanOneMessageHolds) {
  Start();
  std::vector<uint64_t> ids(3 * kMaxFdsPerMessage + 1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = 1000 + i;
  ASSERT_OK_AND_ASSIGN(const auto fds, Fetch(ids));
  ASSERT_EQ(fds.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(IdIn(fds[i]), ids[i]);
}

TEST_F(PeerSocketTest, NoSegmentsAskedIsAnEmptyAnswer) {
  Start();
  ASSERT_OK_AND_ASSIGN(const auto fds, Fetch({}));
  EXPECT_TRUE(fds.empty());
}

TEST_F(PeerSocketTest, AWrongSecretIsRefusedAndSaidSo) {
  Start();
  EXPECT_THAT(Fetch({1}, "0123456789abcdef0123456789abcdeX"),
              FailsWith(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid));
}

TEST_F(PeerSocketTest, ASecretIsRefusedUntilOneIsSet) {
  Start();
  server_->SetSecret("");
  EXPECT_THAT(Fetch({1}), FailsWith(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid));
}

TEST_F(PeerSocketTest, ANewSecretReplacesTheOldOne) {
  Start();
  server_->SetSecret(std::string(kPeerSecretBytes, 'n'));
  EXPECT_THAT(Fetch({1}), FailsWith(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid));
  EXPECT_OK(Fetch({1}, std::string(kPeerSecretBytes, 'n')));
}

TEST_F(PeerSocketTest, AnUnknownSegmentIsAnErrorWithTheOwnersSentence) {
  Start([](uint64_t id) -> absl::StatusOr<UniqueFd> {
    if (id == 13) return absl::NotFoundError("segment 13 is not ours");
    return FileWithId(id);
  });
  const auto fds = Fetch({12, 13});
  EXPECT_THAT(fds, FailsWith(absl::StatusCode::kAborted, reason::kEpochChanged));
  EXPECT_THAT(fds, Says("segment 13 is not ours"));
}

TEST_F(PeerSocketTest, GarbageIsClosedWithoutAnAnswer) {
  Start();
  const UniqueFd socket = Connect();
  ASSERT_OK(SendWithFds(socket.get(), Bytes(std::string(64, 'G')), {}, Soon()));
  EXPECT_TRUE(ClosedInSilence(socket));
}

TEST_F(PeerSocketTest, AnAbsurdCountIsClosedWithoutAnAnswer) {
  Start();
  const UniqueFd socket = Connect();
  ASSERT_OK(SendWithFds(socket.get(), Bytes("CKPM\xff\xff\xff\xff" + kSecret), {}, Soon()));
  EXPECT_TRUE(ClosedInSilence(socket));
}

TEST_F(PeerSocketTest, DescriptorsSentToItAreNotKept) {
  Start();
  const size_t before = OpenFds();
  {
    const UniqueFd socket = Connect();
    const int fds[] = {socket.get(), socket.get()};
    ASSERT_OK(SendWithFds(socket.get(), Bytes(std::string(40, 'G')), fds, Soon()));
    ASSERT_TRUE(ClosedInSilence(socket));
  }
  ASSERT_OK(Fetch({1}));  // now the first connection has been removed
  server_.reset();
  EXPECT_LE(OpenFds(), before);
}

TEST_F(PeerSocketTest, AMutePeerIsClosedWhenItsTimeIsUp) {
  options_.patience = milliseconds(50);
  Start();
  EXPECT_TRUE(ClosedInSilence(Connect()));
}

TEST_F(PeerSocketTest, MutePeersDoNotBlockOthers) {
  options_.patience = std::chrono::hours(1);
  Start();
  std::vector<UniqueFd> mute;
  for (size_t i = 0; i + 1 < options_.max_connections; ++i) mute.push_back(Connect());
  EXPECT_OK(Fetch({1}));
}

TEST_F(PeerSocketTest, EvenWhenAllPlacesAreTakenOthersAreServedInTheEnd) {
  options_.patience = milliseconds(200);
  Start();
  std::vector<UniqueFd> mute;
  for (size_t i = 0; i < 2 * options_.max_connections; ++i) mute.push_back(Connect());
  EXPECT_OK(Fetch({1}));
}

TEST_F(PeerSocketTest, APeerThatLeavesAtOnceHurtsNobody) {
  Start();
  for (int i = 0; i < 50; ++i) Connect();
  EXPECT_OK(Fetch({1}));
}

TEST_F(PeerSocketTest, DestructionDoesNotWaitForMutePeers) {
  options_.patience = std::chrono::hours(1);
  Start();
  const UniqueFd mute = Connect();
  ASSERT_OK(Fetch({1}));  // the silent connection, opened before, is being served
  const auto before = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::minutes(1));
}

TEST_F(PeerSocketTest, TheSocketIsForItsOwnerAloneAndGoesWithTheServer) {
  Start();
  struct stat info = {};
  ASSERT_EQ(::stat(options_.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  server_.reset();
  EXPECT_NE(::stat(options_.path.c_str(), &info), 0);
}

TEST_F(PeerSocketTest, AnotherUserIsRefusedEvenWithTheSecret) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Start();
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(options_.path.c_str(), 0666), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const auto fds = Fetch({1});
    ::_exit(fds.status().code() == absl::StatusCode::kPermissionDenied ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(PeerSocketTest, ManyPeersAtOnceAllGetTheirs) {
  Start();
  std::atomic<int> served = 0;
  std::vector<std::thread> peers;
  for (uint64_t t = 0; t < 24; ++t) {
    peers.emplace_back([this, t, &served] {
      const auto fds = Fetch({t, t + 100});
      served += fds.ok() && IdIn((*fds)[0]) == t && IdIn((*fds)[1]) == t + 100;
    });
  }
  for (std::thread& peer : peers) peer.join();
  EXPECT_EQ(served, 24);
}

TEST(PeerProtocol, AServerThatAnswersGarbageIsAnError) {
  const TempFolder folder;
  const std::string file = folder / "s";
  ASSERT_OK_AND_ASSIGN(const UnixListener listener, UnixListener::Open(file, 0600));
  std::thread server([&] {
    EXPECT_OK(WaitForFd(listener.get(), POLLIN, Soon(), "test"));
    const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_OK(SendWithFds(socket.get(), Bytes(std::string(16, 'g')), {}, Soon()));
    EXPECT_OK(RecvExactly(socket.get(), 48, 0, Soon()));
  });
  EXPECT_THAT(FetchPeerSegments(file, kSecret, std::vector<uint64_t>{1}, Soon()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  server.join();
}

TEST(PeerProtocol, ARefusalWithoutASentenceIsGarbage) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd ours(ends[0]);
  const UniqueFd peers(ends[1]);
  // Status 1, no descriptors, none to come; then a length of 0.
  const std::string refusal = "CKPM" + std::string(1, '\1') + std::string(15, '\0');
  ASSERT_OK(SendWithFds(peers.get(), Bytes(refusal), {}, Soon()));
  EXPECT_THAT(AskPeer(ours.get(), kSecret, std::vector<uint64_t>{1}, Soon()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

}  // namespace
}  // namespace ckptd

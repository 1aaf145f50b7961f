#include "common/base/fd_passing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

Deadline In(std::chrono::nanoseconds time) { return std::chrono::steady_clock::now() + time; }
Deadline Soon() { return In(std::chrono::minutes(1)); }

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

size_t OpenFds() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

struct Pair {
  UniqueFd left;
  UniqueFd right;
};

Pair MakePair() {
  int raw[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, raw), 0);
  return {UniqueFd(raw[0]), UniqueFd(raw[1])};
}

UniqueFd File(std::string_view content) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(fd.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  return fd;
}

std::string ContentOf(const UniqueFd& fd) {
  char text[64] = {};
  const ssize_t n = ::pread(fd.get(), text, sizeof(text), 0);
  return n < 0 ? "unreadable" : std::string(text, static_cast<size_t>(n));
}

TEST(FdPassing, DescriptorsArriveInOrderWithTheBytes) {
  const Pair pair = MakePair();
  const UniqueFd one = File("one");
  const UniqueFd two = File("two");
  const int fds[] = {one.get(), two.get()};
  ASSERT_OK(SendWithFds(pair.left.get(), Bytes("hello"), fds, Soon()));
  ASSERT_OK_AND_ASSIGN(const Received got, RecvExactly(pair.right.get(), 5, 2, Soon()));
  ASSERT_EQ(got.fds.size(), 2U);
  EXPECT_EQ(ContentOf(got.fds[0]) + ContentOf(got.fds[1]), "onetwo");
}

TEST(FdPassing, ReceivedDescriptorsAreCloseOnExec) {
  const Pair pair = MakePair();
  const UniqueFd one = File("one");
  const int fds[] = {one.get()};
  ASSERT_OK(SendWithFds(pair.left.get(), Bytes("x"), fds, Soon()));
  ASSERT_OK_AND_ASSIGN(const Received got, RecvExactly(pair.right.get(), 1, 1, Soon()));
  EXPECT_NE(::fcntl(got.fds.at(0).get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(FdPassing, MoreDescriptorsThanAllowedAreRefusedAndClosed) {
  const Pair pair = MakePair();
  const UniqueFd one = File("one");
  const int fds[] = {one.get(), one.get(), one.get()};
  ASSERT_OK(SendWithFds(pair.left.get(), Bytes("x"), fds, Soon()));
  const size_t before = OpenFds();
  EXPECT_THAT(RecvWithFds(pair.right.get(), 1, 1, Soon()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  EXPECT_EQ(OpenFds(), before);
}

TEST(FdPassing, DescriptorsThatThisProcessHasNoRoomForAreItsOwnTrouble) {
  const Pair pair = MakePair();
  const int fds[] = {pair.left.get()};
  ASSERT_OK(SendWithFds(pair.left.get(), Bytes("x"), fds, Soon()));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<Received> got = RecvWithFds(pair.right.get(), 1, 1, Soon());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(got, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
}

TEST(FdPassing, DescriptorsWhereNoneAreExpectedAreRefused) {
  const Pair pair = MakePair();
  const UniqueFd one = File("one");
  const int fds[] = {one.get()};
  ASSERT_OK(SendWithFds(pair.left.get(), Bytes("x"), fds, Soon()));
  EXPECT_THAT(RecvWithFds(pair.right.get(), 1, 0, Soon()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST(FdPassing, ReceivingFromAMutePeerEndsAtTheDeadline) {
  const Pair pair = MakePair();
  EXPECT_THAT(RecvExactly(pair.right.get(), 1, 0, In(milliseconds(20))),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
}

TEST(FdPassing, SendingToAPeerThatDoesNotReadEndsAtTheDeadline) {
  const Pair pair = MakePair();
  const std::string much(8 << 20, 'x');
  EXPECT_THAT(SendWithFds(pair.left.get(), Bytes(much), {}, In(milliseconds(20))),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
}

TEST(FdPassing, SendingToAClosedPeerIsAnErrorAndNoSignal) {
  Pair pair = MakePair();
  pair.right.Reset();
  EXPECT_THAT(SendWithFds(pair.left.get(), Bytes("x"), {}, Soon()),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
}

TEST(FdPassing, APeerThatClosesEarlyIsUnavailable) {
  Pair pair = MakePair();
  ASSERT_OK(SendWithFds(pair.left.get(), Bytes("abc"), {}, Soon()));
  pair.left.Reset();
  EXPECT_THAT(RecvExactly(pair.right.get(), 4, 0, Soon()), Says("after 3 of 4 bytes"));
}

TEST(FdPassing, LargeMessagesArriveWholeWhileTheOtherSideReads) {
  const Pair pair = MakePair();
  const std::string much(4 << 20, 'y');
  absl::StatusOr<Received> got = absl::UnknownError("not run");
  std::thread reader([&] { got = RecvExactly(pair.right.get(), much.size(), 0, Soon()); });
  EXPECT_OK(SendWithFds(pair.left.get(), Bytes(much), {}, Soon()));
  reader.join();
  ASSERT_OK(got);
  EXPECT_EQ(got->bytes.size(), much.size());
}

TEST(FdPassing, TooManyDescriptorsForOneMessageAreRefused) {
  const Pair pair = MakePair();
  const std::vector<int> fds(kMaxFdsPerMessage + 1, pair.left.get());
  EXPECT_THAT(SendWithFds(pair.left.get(), Bytes("x"), fds, Soon()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST(UnixSockets, AConnectionKnowsWhoIsOnTheOtherSide) {
  const TempFolder dir;
  ASSERT_OK_AND_ASSIGN(const UnixListener listener, UnixListener::Open(dir / "s", 0600));
  ASSERT_OK_AND_ASSIGN(const UniqueFd client, ConnectUnix(dir / "s", Soon()));
  ASSERT_OK_AND_ASSIGN(const PeerCredentials peer, CredentialsOf(client.get()));
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::geteuid());
}

TEST(UnixSockets, ASocketFileHasItsModeWhateverTheUmask) {
  const TempFolder dir;
  const mode_t old = ::umask(0);
  const auto listener = UnixListener::Open(dir / "s", 0600);
  ::umask(old);
  ASSERT_OK(listener);
  struct stat info = {};
  ASSERT_EQ(::stat((dir / "s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

// The socket file of a process that was killed.
void LeaveStale(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd killed(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(::bind(killed.get(), generic, sizeof(address)), 0) << path;
}

TEST(UnixSockets, AStaleSocketFileIsReplaced) {
  const TempFolder dir;
  LeaveStale(dir / "s");
  EXPECT_OK(UnixListener::Open(dir / "s", 0600));
}

TEST(UnixSockets, AListenerRemovesItsFile) {
  const TempFolder dir;
  { ASSERT_OK(UnixListener::Open(dir / "s", 0600)); }
  EXPECT_FALSE(FileAt::Of(dir / "s").has_value());
}

TEST(UnixSockets, AListenerLeavesTheFileOfItsSuccessorAlone) {
  const TempFolder dir;
  ASSERT_OK_AND_ASSIGN(UnixListener first, UnixListener::Open(dir / "s", 0600));
  ASSERT_EQ(::unlink((dir / "s").c_str()), 0);  // usually together with its folder
  ASSERT_OK_AND_ASSIGN(const UnixListener second, UnixListener::Open(dir / "s", 0600));
  first.Close();
  EXPECT_OK(ConnectUnix(dir / "s", Soon()));
}

TEST(UnixSockets, OfSeveralThatReplaceAStaleFileOneListens) {
  const TempFolder dir;
  constexpr int kRounds = 2'000;
  std::vector<UnixListener> listening(3);
  std::barrier together(4);
  const auto listen = [&](size_t i) {
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      if (auto listener = UnixListener::Open(dir / "s", 0600); listener.ok()) {
        listening[i] = *std::move(listener);
      }
      together.arrive_and_wait();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < listening.size(); ++i) threads.emplace_back(listen, i);
  for (int round = 0; round < kRounds; ++round) {
    for (UnixListener& one : listening) one.Close();
    LeaveStale(dir / "s");
    together.arrive_and_wait();
    together.arrive_and_wait();
    EXPECT_EQ(std::count_if(listening.begin(), listening.end(), std::mem_fn(&UnixListener::valid)),
              1);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(UnixSockets, ALiveSocketIsLeftAlone) {
  const TempFolder dir;
  ASSERT_OK_AND_ASSIGN(const UnixListener first, UnixListener::Open(dir / "s", 0600));
  EXPECT_THAT(UnixListener::Open(dir / "s", 0600),
              Says("another process answers there (process " + std::to_string(::getpid())));
}

TEST(UnixSockets, AFileThatIsNoSocketIsLeftAlone) {
  const TempFolder dir;
  std::ofstream(dir / "s") << "precious";
  EXPECT_THAT(UnixListener::Open(dir / "s", 0600), Says("no socket"));
  EXPECT_EQ(::access((dir / "s").c_str(), F_OK), 0);
}

TEST(UnixSockets, ConnectingWhereNobodyListensIsUnavailable) {
  EXPECT_THAT(ConnectUnix("/tmp/ckptd-no-such-socket", Soon()),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
}

TEST(UnixSockets, ConnectingToAFullBacklogEndsAtTheDeadline) {
  const TempFolder dir;
  ASSERT_OK_AND_ASSIGN(const UnixListener listener, UnixListener::Open(dir / "s", 0600));
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  ASSERT_OK_AND_ASSIGN(const UniqueFd first, ConnectUnix(dir / "s", Soon()));
  EXPECT_THAT(ConnectUnix(dir / "s", In(milliseconds(20))),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
}

TEST(UnixSockets, APathThatIsTooLongIsRefusedWithItsLength) {
  EXPECT_THAT(ConnectUnix("/tmp/" + std::string(200, 'p'), Soon()), Says("205 bytes"));
}

}  // namespace
}  // namespace ckptd

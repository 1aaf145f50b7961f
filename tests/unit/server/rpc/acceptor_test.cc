// Accepting connections, also when this process runs out of descriptors.
#include "server/rpc/acceptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/group_service.h"
#include "server/rpc/links.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// Sets the soft limit of descriptors until it is destroyed.
class FileLimit {
 public:
  explicit FileLimit(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now = {most, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

UniqueFd Socket() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

int Connect(const UniqueFd& socket, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

// Takes all descriptors that are left.
std::vector<UniqueFd> TakeAll() {
  std::vector<UniqueFd> taken;
  for (UniqueFd fd(::dup(0)); fd.valid(); fd = UniqueFd(::dup(0))) taken.push_back(std::move(fd));
  EXPECT_EQ(errno, EMFILE);
  return taken;
}

// UBSan checks objects through a pipe, and reports errors if it gets none.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Waits as long as a server needs to notice a connection.
bool NobodyAnswers(const UniqueFd& client) {
  pollfd polled = {client.get(), POLLIN, 0};
  return ::poll(&polled, 1, 100) == 0;
}

void Say(const UniqueFd& client, std::string_view what) {
  // The other side may have closed it.
  (void)::send(client.get(), what.data(), what.size(), MSG_NOSIGNAL);
}

void ExpectClosed(const UniqueFd& client) {
  pollfd polled = {client.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 20'000), 1) << "it is kept";
  char byte = 0;
  EXPECT_LE(::recv(client.get(), &byte, 1, 0), 0) << "the other side closed it";
}

class AcceptorTest : public ::testing::Test {
 protected:
  void Start(double may_open = 0.75) {
    const auto take = [this](UniqueFd& fd) {
      MutexLock lock(mutex_);
      if (full_) return Acceptor::Taken::kLater;
      taken_.push_back(std::move(fd));
      changed_.NotifyAll();
      return Acceptor::Taken::kYes;
    };
    ASSERT_OK_AND_ASSIGN(listener_, ListenTcp("127.0.0.1:0"));
    ASSERT_OK_AND_ASSIGN(acceptor_, Acceptor::Start(listener_.socket.get(),
                                                    {.address = "here",
                                                     .may_open = may_open,
                                                     .most_waiting = kMostWaiting,
                                                     .take = take}));
  }
  void SetFull(bool full) {
    MutexLock lock(mutex_);
    full_ = full;
  }
  UniqueFd Caller(std::string_view says) const {
    UniqueFd client = Socket();
    EXPECT_EQ(Connect(client, listener_.port), 0);
    Say(client, says);
    return client;
  }
  bool WaitFor(size_t count) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, Soon(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return taken_.size() == count;
    });
  }

  static constexpr size_t kMostWaiting = 10;
  TcpListener listener_;
  Mutex mutex_;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar changed_;
  std::vector<UniqueFd> taken_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Acceptor> acceptor_;  // destroyed first
};

TEST_F(AcceptorTest, GivesEveryConnectionOnce) {
  Start();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(Caller("hello"));
  EXPECT_TRUE(WaitFor(200));
}

TEST_F(AcceptorTest, GivesAConnectionOnOnceItsCallerSpeaks) {
  Start();
  const UniqueFd silent = Caller("");
  const UniqueFd client = Caller("hello");
  ASSERT_TRUE(WaitFor(1));
  Say(silent, "hello");
  EXPECT_TRUE(WaitFor(2));
}

TEST_F(AcceptorTest, ClosesTheOldestSilentConnectionsAndServesWhoSpeaks) {
  Start();
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 3 * kMostWaiting; ++i) silent.push_back(Caller(""));
  const UniqueFd client = Caller("hello");
  ASSERT_TRUE(WaitFor(1));
  for (size_t i = 0; i < 2 * kMostWaiting; ++i) ExpectClosed(silent[i]);
  for (size_t i = 2 * kMostWaiting; i < silent.size(); ++i) Say(silent[i], "hello");
  EXPECT_TRUE(WaitFor(1 + kMostWaiting)) << "the youngest were kept";
}

TEST_F(AcceptorTest, OffersAConnectionAgainWhereThereWasNoRoom) {
  Start();
  SetFull(true);
  const UniqueFd client = Caller("hello");
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 3 * kMostWaiting; ++i) silent.push_back(Caller(""));
  ExpectClosed(silent.front());  // and not the client, which is older
  SetFull(false);
  EXPECT_TRUE(WaitFor(1));
}

TEST_F(AcceptorTest, GoesOnWhenThereAreDescriptorsAgain) {
  if (kSanitized) GTEST_SKIP() << "UBSan needs descriptors of its own";
  Start();
  const UniqueFd client = Socket();
  {
    const FileLimit limit(128);
    const std::vector<UniqueFd> all = TakeAll();
    ASSERT_EQ(Connect(client, listener_.port), 0);
    Say(client, "hello");
    EXPECT_TRUE(NobodyAnswers(client));
    MutexLock lock(mutex_);
    EXPECT_TRUE(taken_.empty());
  }
  EXPECT_TRUE(WaitFor(1));
}

class AcceptorsShare : public AcceptorTest, public ::testing::WithParamInterface<int> {};

TEST_P(AcceptorsShare, OfTheDescriptorsIsNotExceeded) {
  const int most = GetParam();
  const FileLimit limit(200);
  Start(most / 200.0);
  std::vector<UniqueFd> kept;
  for (UniqueFd fd(::dup(0)); fd.get() < most; fd = UniqueFd(::dup(0))) kept.push_back(std::move(fd));
  ExpectClosed(Caller("hello"));
  kept.clear();
  const UniqueFd next = Caller("hello");
  EXPECT_TRUE(WaitFor(1));
}

INSTANTIATE_TEST_SUITE_P(OfTwoHundred, AcceptorsShare, ::testing::Values(150, 100));

TEST(ListenTcp, TakesAllAddressesOfBothKinds) {
  ASSERT_OK_AND_ASSIGN(const TcpListener listener, ListenTcp("[::]:0"));
  EXPECT_EQ(Connect(Socket(), listener.port), 0);
}

TEST(ListenTcp, SaysWhatIsWrongWithAnAddress) {
  for (const char* bad : {"nothing", "no.such.host.invalid:1", "203.0.113.1:0"}) {
    EXPECT_THAT(ListenTcp(bad),
                FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid))
        << bad;
  }
}

// The acceptor with a gRPC server.
TEST(GrpcServerWithoutDescriptors, AnswersAgainOnceThereAreSome) {
  if (kSanitized) GTEST_SKIP() << "UBSan needs descriptors of its own";
  GroupServiceImpl service;
  ASSERT_OK_AND_ASSIGN(const auto server, GrpcServer::Start({"127.0.0.1:0"}, {&service}));
  {
    UniqueFd clients[8];
    for (UniqueFd& client : clients) client = Socket();
    const FileLimit limit(128);
    std::vector<std::vector<UniqueFd>> all;
    // The server may close the first connection, because gRPC itself closes descriptors while it
    // starts.
    const bool silent = std::any_of(std::begin(clients), std::end(clients), [&](const UniqueFd& client) {
      all.push_back(TakeAll());
      const bool connected = Connect(client, server->port()) == 0;
      Say(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
      return connected && NobodyAnswers(client);
    });
    ASSERT_TRUE(silent);
  }
  const auto leader = ConnectToLeader("127.0.0.1:" + std::to_string(server->port()), {});
  const absl::Status answer = leader->Heartbeat({1, "one", 0, std::nullopt}, Soon()).status();
  EXPECT_THAT(answer, Says("still starting"));
}

}  // namespace
}  // namespace ckptd

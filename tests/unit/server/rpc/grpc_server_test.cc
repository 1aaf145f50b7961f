#include "server/rpc/grpc_server.h"

#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/group_service.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/links.h"
#include "tests/testing/as_guest.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

// What a client of HTTP/2 says first, with empty settings.
const std::string kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);

// Of this process, in KiB: "VmRSS", or "VmHWM" for its peak.
size_t Memory(const std::string& kind) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kind + ":")) return std::stoul(line.substr(kind.size() + 1));
  }
  return 0;
}

class GrpcServerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const std::string& address) {
    return GrpcServer::Start({address}, {&service_});
  }
  // A socket file left by a daemon that was killed.
  void LeaveStaleSocket() {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "a.sock";
  const std::string address_ = "unix:" + path_;
  GroupServiceImpl service_;
};

TEST_F(GrpcServerTest, TheSocketIsForItsOwnerAlone) {
  ASSERT_OK_AND_ASSIGN(const auto server, Start(address_));
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(GrpcServerTest, EachGuestHasThreadsOfItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto services = [](const Caller&) {
    GrpcServer::Services made;
    made.push_back(std::make_unique<GroupServiceImpl>());
    return made;
  };
  ASSERT_OK_AND_ASSIGN(const auto server, GrpcServer::Start({.address = address_,
                                                             .max_threads = 2,
                                                             .policy = {0, 43'000},
                                                             .for_guest = services},
                                                            {&service_}));
  for (const uid_t guest : {65532, 65533, 65534}) {
    UniqueFd socket = ConnectAs(guest, 43'000, path_, Soon());
    ASSERT_TRUE(socket.valid());
    const auto channel = grpc::CreateInsecureChannelFromFd("guest", socket.Release());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::HeartbeatResponse answer;
    const auto called = v1::GroupService::NewStub(channel)->Heartbeat(&context, {}, &answer);
    EXPECT_EQ(ReasonOf(FromGrpc(called)), reason::kRankMissing) << "the service has no node";
  }
}

TEST_F(GrpcServerTest, AGuestWithTooManyConnectionsLosesItsOldest) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto none = [](const Caller&) { return GrpcServer::Services(); };
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{256, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      GrpcServer::Start({.address = address_, .policy = {0, 43'000}, .for_guest = none},
                        {&service_}));
  const auto connect = [&](uid_t uid) {
    UniqueFd socket = ConnectAs(uid, 43'000, path_, Soon());
    EXPECT_EQ(::send(socket.get(), kPreface.data(), kPreface.size(), 0),
              static_cast<ssize_t>(kPreface.size()));
    pollfd polled = {socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&polled, 1, 20'000), 1) << "gRPC greets";
    return socket;
  };
  ASSERT_TRUE(server);
  const auto ends = [](const UniqueFd& socket) {
    std::string rest(4096, '\0');
    for (;;) {
      pollfd polled = {socket.get(), POLLIN, 0};
      if (::poll(&polled, 1, 20'000) != 1) return false;
      if (::recv(socket.get(), rest.data(), rest.size(), MSG_DONTWAIT) <= 0) return true;
    }
  };
  const UniqueFd other = connect(65533);
  std::vector<UniqueFd> many;
  for (int i = 0; i < 17; ++i) many.push_back(connect(65534));
  EXPECT_TRUE(ends(many.front()));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const int stays : {other.get(), many.back().get()}) {
    pollfd polled = {stays, POLLRDHUP, 0};
    EXPECT_EQ(::poll(&polled, 1, 0), 0) << "it was closed";
  }
}

TEST_F(GrpcServerTest, ALiveSocketIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto server, Start(address_));
  EXPECT_THAT(Start(address_), FailsWith(kFailedPrecondition, reason::kConfigInvalid));
  EXPECT_OK(ConnectUnix(path_, Soon()));
}

TEST_F(GrpcServerTest, APathIsTakenAsItIsWhateverUrisMakeOfIt) {
  ASSERT_OK_AND_ASSIGN(const auto server, Start(address_));
  struct stat before = {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  for (const std::string odd : {"%61.sock", "a.sock?b", "a.sock#b", "a b.sock", "\xff.sock"}) {
    ASSERT_OK_AND_ASSIGN(const auto other, Start("unix:" + (folder_ / odd)));
    EXPECT_OK(ConnectUnix(folder_ / odd, Soon())) << odd;
  }
  struct stat after = {};
  ASSERT_EQ(::stat(path_.c_str(), &after), 0) << "the first one's was taken";
  EXPECT_EQ(after.st_ino, before.st_ino);
}

TEST_F(GrpcServerTest, WhatIsNoSocketIsLeftAloneAndNamed) {
  folder_.Write("a.sock", "precious");
  EXPECT_THAT(Start(address_).status(), Says("a file that is no socket is there"));
  EXPECT_TRUE(std::filesystem::exists(path_));
  std::filesystem::create_directory(folder_ / "b.sock.lock");
  EXPECT_THAT(Start("unix:" + (folder_ / "b.sock")),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST_F(GrpcServerTest, AStaleSocketIsRecovered) {
  LeaveStaleSocket();
  ASSERT_OK_AND_ASSIGN(const auto server, Start(address_));
  EXPECT_OK(ConnectUnix(path_, Soon()));
}

TEST_F(GrpcServerTest, ASocketCanBeUsedAgainAfterItsServerHasGone) {
  ASSERT_OK(Start(address_));
  EXPECT_OK(Start(address_));
}

TEST_F(GrpcServerTest, LeavesNoFilesBehind) {
  ASSERT_OK(Start(address_));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(GrpcServerTest, LeavesTheSocketOfItsSuccessorAlone) {
  ASSERT_OK_AND_ASSIGN(auto first, Start(address_));
  for (const char* file : {"a.sock", "a.sock.lock"})
    ASSERT_TRUE(std::filesystem::remove(folder_ / file));
  ASSERT_OK_AND_ASSIGN(const auto second, Start(address_));
  first.reset();
  EXPECT_OK(ConnectUnix(path_, Soon()));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".kept"));
}

TEST_F(GrpcServerTest, APathTooLongForASocketIsRefusedWithTheNumbers) {
  const auto server = Start("unix:/" + std::string(200, 'x'));
  EXPECT_THAT(server, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(server, Says("has 201 bytes, Unix sockets allow 107"));
}

TEST_F(GrpcServerTest, ALivePortIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto server, Start("127.0.0.1:0"));
  ASSERT_GT(server->port(), 0);
  EXPECT_THAT(Start("127.0.0.1:" + std::to_string(server->port())),
              FailsWith(kFailedPrecondition, reason::kConfigInvalid));
}

std::string Frame(char kind, const std::string& payload) {
  const auto size = static_cast<char>(payload.size() >> 8);
  return std::string{'\0', size, static_cast<char>(payload.size()), kind, 0, 0, 0, 0, 1} + payload;
}

// A call's headers that never end: `bytes` in frames of 200 tiny headers each, and then `last`. False
// if the connection stays open.
bool EndlessHeadersAreEnded(int port, size_t bytes, const std::string& last) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), generic, sizeof(address)) != 0) return false;
  std::string some;
  for (int i = 0; i < 200; ++i) some += std::string("\x00\x01" "a\x01" "b", 5);
  std::string all = kPreface + Frame(1, "");
  while (all.size() < bytes) all += Frame(9, some);
  all += last;
  // The other side may end it before it has got all.
  (void)::send(socket.get(), all.data(), all.size(), MSG_NOSIGNAL);
  std::string rest(4096, '\0');
  for (;;) {
    pollfd polled = {socket.get(), POLLIN, 0};
    if (::poll(&polled, 1, 20'000) != 1) return false;
    if (::recv(socket.get(), rest.data(), rest.size(), MSG_DONTWAIT) <= 0) return true;
  }
}

TEST_F(GrpcServerTest, OnThePortForProbesHeadersWithoutEndAreCutOff) {
  const auto server = GrpcServer::Start({.address = "127.0.0.1:0", .only_probes = true}, {&service_});
  ASSERT_OK(server);
  EXPECT_TRUE(EndlessHeadersAreEnded((*server)->port(), 1 << 20, ""));
}

TEST_F(GrpcServerTest, HeadersWithoutEndTakeNoMoreThanTheQuota) {
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      GrpcServer::Start({.address = "127.0.0.1:0", .max_held_bytes = size_t{1} << 20}, {&service_}));
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here
  const size_t before = Memory("VmRSS");
  // The last frame may not come here: once it is read, the server ends the connection.
  EXPECT_TRUE(EndlessHeadersAreEnded(server->port(), 1 << 20, Frame(6, std::string(8, '\0'))));
  EXPECT_LT(Memory("VmHWM") - before, 10'000u);
}

TEST_F(GrpcServerTest, AServiceWithoutItsNodeAsksToTryAgain) {
  ASSERT_OK_AND_ASSIGN(const auto server, Start("127.0.0.1:0"));
  const auto leader = ConnectToLeader("127.0.0.1:" + std::to_string(server->port()), {});
  EXPECT_EQ(leader->Heartbeat({1, "one", 0, std::nullopt}, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ckptd

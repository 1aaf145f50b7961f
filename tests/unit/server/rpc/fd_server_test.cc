#include "server/rpc/fd_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "server/protocol/timing.h"
#include "tests/testing/as_guest.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr char kName[] = "checkpoints/a";

// The fields of a message's 16-byte header.
struct Answer {
  std::string magic;
  uint32_t status = 0;
  uint32_t fds_here = 0;
  uint32_t fds_to_come = 0;
  std::vector<UniqueFd> fds;
};

class FdServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = FdServer::Start(path_, leases_, {{::geteuid()}, rules_});
    ASSERT_OK(started);
    server_ = std::move(started).value();
  }
  void Load(AttachMode intended, uint64_t segments = 1) {
    LoadRequest request = RuleRequest();
    request.intended = intended;
    ASSERT_OK(MakeActive(catalog_, kName, request, segments * kSmallSegment));
  }
  std::string Token(AttachMode mode = AttachMode::kShared) {
    return leases_.Open(kName, mode).value().token;
  }
  UniqueFd Connect() { return ConnectUnix(path_, Soon()).value(); }
  static std::string PassingHeader(uint32_t files, const std::string& job,
                                   const std::string& paths) {
    std::string header(FilePassing::kHeaderBytes, '\0');
    const uint32_t numbers[] = {files, static_cast<uint32_t>(job.size()),
                                static_cast<uint32_t>(job.size() + paths.size())};
    std::memcpy(header.data(), "CKPTDFDS", 8);
    std::memcpy(header.data() + 8, numbers, sizeof(numbers));
    return header;
  }
  static void SendFiles(const UniqueFd& socket, const std::string& text,
                        const std::vector<std::string>& files) {
    std::vector<UniqueFd> opened;
    std::vector<int> fds;
    for (const std::string& file : files) {
      opened.emplace_back(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
      fds.push_back(opened.back().get());
    }
    ASSERT_OK(SendWithFds(socket.get(), std::as_bytes(std::span(text)), fds, Soon()));
  }
  static void Send(const UniqueFd& socket, const std::string& text) {
    ASSERT_OK(SendWithFds(socket.get(), std::as_bytes(std::span(text)), {}, Soon()));
  }
  static Answer Receive(const UniqueFd& socket) {
    Received received = RecvExactly(socket.get(), 16, kMaxFdsPerMessage, Soon()).value();
    Answer answer;
    answer.magic.assign(reinterpret_cast<const char*>(received.bytes.data()), 4);
    std::memcpy(&answer.status, received.bytes.data() + 4, 4);
    std::memcpy(&answer.fds_here, received.bytes.data() + 8, 4);
    std::memcpy(&answer.fds_to_come, received.bytes.data() + 12, 4);
    answer.fds = std::move(received.fds);
    return answer;
  }
  // Reads until the server closes. Returns what it sent.
  static std::string Rest(const UniqueFd& socket) {
    std::string rest;
    for (;;) {
      const Received received = RecvWithFds(socket.get(), 4096, 0, Soon()).value();
      if (received.bytes.empty()) return rest;
      rest.append(reinterpret_cast<const char*>(received.bytes.data()), received.bytes.size());
    }
  }

  TempFolder folder_;
  const std::string path_ = folder_ / "fd.sock";
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(32);
  Catalog catalog_{*memory_, 0, 1};
  LeaseTable leases_{catalog_};
  const std::shared_ptr<SourceRules> rules_ = std::make_shared<SourceRules>();
  std::unique_ptr<FdServer> server_;
};

TEST_F(FdServerTest, TheSocketIsForItsOwnerAlone) {
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

// The socket's mode refuses other users. The server must refuse them as well if the mode is
// changed.
TEST_F(FdServerTest, AnotherUserIsRefusedEvenWithAToken) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Load(AttachMode::kShared);
  const UniqueFd socket = ConnectAs(65534, 65534, path_, Soon());
  Send(socket, Token());
  const Answer answer = Receive(socket);
  EXPECT_EQ(answer.status, static_cast<uint32_t>(absl::StatusCode::kPermissionDenied));
  EXPECT_TRUE(answer.fds.empty());
  EXPECT_FALSE(leases_.List().at(0).connected);
}

TEST_F(FdServerTest, AMemberOfTheGroupThatMayAttachIsServed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  server_.reset();
  server_ = FdServer::Start(path_, leases_, {{::geteuid(), 43'000}, rules_}).value();
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  EXPECT_EQ(info.st_gid, 43'000u);
  Load(AttachMode::kShared);
  const UniqueFd socket = ConnectAs(65534, 43'000, path_, Soon());
  Send(socket, Token());
  EXPECT_EQ(Receive(socket).fds_here, 1u);
}

TEST_F(FdServerTest, FilesThatAClientPassesCountAsLongAsItsConnection) {
  const std::string file = folder_.Write("a", "bytes");
  UniqueFd socket = Connect();
  Send(socket, PassingHeader(1, "job", std::string("/m/a\0", 5)));
  SendFiles(socket, "job" + std::string("/m/a\0", 5), {file});
  const Answer answer = Receive(socket);
  EXPECT_EQ(answer.status, 0u);
  EXPECT_EQ(answer.fds_here + answer.fds_to_come, 0u);
  EXPECT_TRUE(rules_->passed.Has({std::nullopt, "job"}, "/m/a"));
  socket.Reset();
  for (const Deadline end = Soon(); rules_->passed.count() > 0 && Clock::now() < end;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(rules_->passed.count(), 0u);
}

TEST_F(FdServerTest, FilesOfAGuestCountForItsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  server_.reset();
  server_ = FdServer::Start(path_, leases_, {{::geteuid(), 43'000}, rules_}).value();
  const UniqueFd socket = ConnectAs(65534, 43'000, path_, Soon());
  Send(socket, PassingHeader(1, "", std::string("/m/a\0", 5)));
  SendFiles(socket, std::string("/m/a\0", 5), {folder_.Write("a", "bytes")});
  EXPECT_EQ(Receive(socket).status, 0u);
  EXPECT_TRUE(rules_->passed.Has({65534, ""}, "/m/a"));
  EXPECT_FALSE(rules_->passed.Has({std::nullopt, ""}, "/m/a"));
}

TEST_F(FdServerTest, FilesThatAreNotTakenAreRefusedWithASentence) {
  const UniqueFd socket = Connect();
  Send(socket, PassingHeader(1, "", std::string("./m/a\0", 6)));
  SendFiles(socket, std::string("./m/a\0", 6), {folder_.Write("a", "bytes")});
  const Answer answer = Receive(socket);
  EXPECT_EQ(answer.status, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_NE(Rest(socket).find("a path is not absolute"), std::string::npos);
  EXPECT_EQ(rules_->passed.count(), 0u);
}

TEST_F(FdServerTest, MoreFilesThanTheDaemonKeepsAreRefused) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{64, before.rlim_max};
  server_.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  server_ = FdServer::Start(path_, leases_, {{::geteuid()}, rules_}).value();
  const UniqueFd socket = Connect();
  Send(socket, PassingHeader(17, "", "paths"));
  const Answer answer = Receive(socket);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(answer.status, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
}

TEST_F(FdServerTest, AGuestMayPassAQuarterOfTheFiles) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{512, before.rlim_max};
  server_.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  server_ = FdServer::Start(path_, leases_, {{::geteuid(), 43'000}, rules_}).value();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd first = ConnectAs(65534, 43'000, path_, Soon());
  Send(first, PassingHeader(32, "", "paths"));
  const UniqueFd second = ConnectAs(65534, 43'000, path_, Soon());
  Send(second, PassingHeader(1, "", "paths"));
  EXPECT_EQ(Receive(second).status, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(Rest(second).find("32 of one user"), std::string::npos);
  const UniqueFd other = ConnectAs(65533, 43'000, path_, Soon());
  Send(other, PassingHeader(1, "", std::string("/m/a\0", 5)));
  SendFiles(other, std::string("/m/a\0", 5), {folder_.Write("a", "bytes")});
  EXPECT_EQ(Receive(other).status, 0u);
}

TEST_F(FdServerTest, TradesATokenForOneDescriptorPerSegment) {
  Load(AttachMode::kShared, 3);
  const UniqueFd socket = Connect();
  Send(socket, Token());
  const Answer answer = Receive(socket);
  EXPECT_EQ(answer.magic, "CKP1");
  EXPECT_EQ(answer.status, 0u);
  EXPECT_EQ(answer.fds_here, 3u);
  EXPECT_EQ(answer.fds_to_come, 0u);
  EXPECT_EQ(answer.fds.size(), 3u);
}

TEST_F(FdServerTest, ReadersGetDescriptorsThatCannotBeWritten) {
  Load(AttachMode::kShared);
  const UniqueFd socket = Connect();
  Send(socket, Token());
  const Answer answer = Receive(socket);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, answer.fds.at(0).get(), 0), MAP_FAILED);
}

TEST_F(FdServerTest, ARankWithoutMemoryGetsAnAnswerWithoutDescriptors) {
  Load(AttachMode::kShared, 0);
  const UniqueFd socket = Connect();
  Send(socket, Token());
  EXPECT_EQ(Receive(socket).fds_here, 0u);
}

TEST_F(FdServerTest, ATokenMayComeInPieces) {
  Load(AttachMode::kShared);
  const std::string token = Token();
  const UniqueFd socket = Connect();
  for (const char digit : token) Send(socket, std::string(1, digit));
  EXPECT_EQ(Receive(socket).status, 0u);
}

TEST_F(FdServerTest, AnUnknownTokenIsAnsweredWithAnErrorAndTheEnd) {
  const UniqueFd socket = Connect();
  Send(socket, std::string(LeaseTable::kTokenLength, '0'));
  const Answer answer = Receive(socket);
  EXPECT_EQ(answer.status, static_cast<uint32_t>(absl::StatusCode::kUnauthenticated));
  const std::string rest = Rest(socket);
  uint32_t length = 0;
  ASSERT_GE(rest.size(), sizeof(length));
  std::memcpy(&length, rest.data(), sizeof(length));
  EXPECT_EQ(length, rest.size() - sizeof(length));
  EXPECT_NE(rest.find("token is unknown"), std::string::npos);
}

TEST_F(FdServerTest, GarbageIsOnlyAnUnknownToken) {
  const UniqueFd socket = Connect();
  std::string garbage(LeaseTable::kTokenLength, '\xff');
  garbage[3] = '\0';
  Send(socket, garbage);
  EXPECT_EQ(Receive(socket).status, static_cast<uint32_t>(absl::StatusCode::kUnauthenticated));
}

TEST_F(FdServerTest, ALeaseEndsWithItsConnection) {
  Load(AttachMode::kShared);
  UniqueFd socket = Connect();
  Send(socket, Token());
  ASSERT_EQ(Receive(socket).status, 0u);
  socket.Reset();
  EXPECT_EQ(leases_.WaitUntilEmpty(Soon()), 0u);
}

TEST_F(FdServerTest, WhatALeaseHolderSaysDoesNotEndItsLease) {
  Load(AttachMode::kShared);
  const UniqueFd socket = Connect();
  Send(socket, Token());
  ASSERT_EQ(Receive(socket).status, 0u);
  Send(socket, "hello");
  const UniqueFd other = Connect();  // once it is answered, the first one was read
  Send(other, Token());
  ASSERT_EQ(Receive(other).status, 0u);
  EXPECT_EQ(leases_.List().size(), 2u);
}

TEST_F(FdServerTest, AConnectionThatClosesBeforeItsTokenIsOverHurtsNobody) {
  Load(AttachMode::kShared);
  UniqueFd socket = Connect();
  Send(socket, Token().substr(0, 5));
  socket.Reset();
  const UniqueFd other = Connect();
  Send(other, Token());
  EXPECT_EQ(Receive(other).status, 0u);
}

TEST_F(FdServerTest, MuteConnectionsDelayNobody) {
  Load(AttachMode::kShared);
  std::vector<UniqueFd> mute;
  for (int i = 0; i < 100; ++i) mute.push_back(Connect());
  const auto before = Clock::now();
  const UniqueFd socket = Connect();
  Send(socket, Token());
  ASSERT_EQ(Receive(socket).status, 0u);
  EXPECT_LT(Clock::now() - before, timing::kTokenPatience);
}

TEST_F(FdServerTest, PastTheLimitTheOldestMuteConnectionGoes) {
  const UniqueFd oldest = Connect();
  std::vector<UniqueFd> mute;
  const auto before = Clock::now();
  for (size_t i = 0; i < FdServer::kMaxUnproven; ++i) mute.push_back(Connect());
  EXPECT_EQ(Rest(oldest), "");
  EXPECT_LT(Clock::now() - before, timing::kTokenPatience);
}

// Clients that do not receive what is sent to them, with a server that sends 8 descriptors at a time.
class FdServerWithFewDescriptors : public FdServerTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    Restart({::geteuid()});
    Load(AttachMode::kShared, 20);
  }
  void Restart(AccessPolicy policy) {
    const rlimit few{512, before_.rlim_max};
    server_.reset();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    server_ = FdServer::Start(path_, leases_, {policy, rules_}).value();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0);
  }
  UniqueFd Shows(UniqueFd socket) {
    Send(socket, Token());
    pollfd polled = {socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&polled, 1, 20'000), 1);
    return socket;
  }
  static size_t ReceiveAll(const UniqueFd& socket) {
    size_t all = 0;
    for (;;) {
      const Answer answer = Receive(socket);
      all += answer.fds.size();
      if (answer.fds_to_come == 0) return all;
    }
  }
  UniqueFd Guest(uid_t uid) { return ConnectAs(uid, 43'000, path_, Soon()); }
  void ExpectNothingWhileOthersAttach(const UniqueFd& waiting) {
    EXPECT_EQ(ReceiveAll(Shows(Guest(65533))), 20u);
    int bytes = 0;
    ASSERT_EQ(::ioctl(waiting.get(), FIONREAD, &bytes), 0);
    EXPECT_EQ(bytes, 0) << "its user has a message to receive";
  }

  rlimit before_ = {};
};

TEST_F(FdServerWithFewDescriptors, SendsTheNextMessageOnceThisOneIsReceived) {
  const UniqueFd socket = Shows(Connect());
  int waiting = 0;
  ASSERT_EQ(::ioctl(socket.get(), FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 16) << "one message";
  EXPECT_EQ(ReceiveAll(socket), 20u);
}

TEST_F(FdServerWithFewDescriptors, AClientThatReceivesNothingDelaysOnlyItself) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Restart({::geteuid(), 43'000});
  const UniqueFd still = Shows(Guest(65534));
  const UniqueFd sibling = Guest(65534);
  Send(sibling, Token());
  ExpectNothingWhileOthersAttach(sibling);
  EXPECT_EQ(ReceiveAll(still), 20u);
  EXPECT_EQ(ReceiveAll(sibling), 20u);
}

// It keeps what it was sent, so that counts until it is gone.
TEST_F(FdServerWithFewDescriptors, AClientThatSaysItIsDoneAndReceivesNothingGetsNoMore) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  Restart({::geteuid(), 43'000});
  UniqueFd still = Shows(Guest(65534));
  ASSERT_EQ(::shutdown(still.get(), SHUT_RDWR), 0);
  EXPECT_EQ(leases_.WaitUntilEmpty(Soon()), 0u);
  const UniqueFd sibling = Guest(65534);
  Send(sibling, Token());
  ExpectNothingWhileOthersAttach(sibling);
  still.Reset();
  EXPECT_EQ(ReceiveAll(sibling), 20u);
}

TEST_F(FdServerWithFewDescriptors, AClientThatReceivesNothingLosesItsLeaseAndIsNamed) {
  const UniqueFd still = Shows(Connect());
  const UniqueFd sibling = Connect();
  Send(sibling, Token());
  EXPECT_EQ(Receive(sibling).status, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  const std::string named = "process " + std::to_string(::getpid()) + " received nothing";
  EXPECT_NE(Rest(sibling).find(named), std::string::npos);
  EXPECT_EQ(leases_.List().size(), 1u) << "only the second token's is left, which was not used";
  EXPECT_EQ(Receive(still).fds.size(), 8u);
  EXPECT_EQ(Receive(still).status, static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(Rest(still).find(named), std::string::npos);
  EXPECT_EQ(ReceiveAll(Shows(Connect())), 20u) << "nothing is left to receive";
}

TEST_F(FdServerTest, ExclusiveMemoryLeavesTheDaemonOnceItIsHandedOver) {
  Load(AttachMode::kExclusive);
  const UniqueFd socket = Connect();
  Send(socket, Token(AttachMode::kExclusive));
  const Answer answer = Receive(socket);
  void* const mapped =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, answer.fds.at(0).get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::munmap(mapped, 4096);
  uint64_t seen = 0;
  CheckpointInfo info;
  while (info.state != CheckpointState::kTaken) {
    info = catalog_.watchers().Watch(kName, seen, Soon()).value();
  }
  EXPECT_EQ(memory_->Usage().used, 0u);
}

TEST_F(FdServerTest, EndsEveryLeaseWhenItGoes) {
  Load(AttachMode::kShared);
  const UniqueFd socket = Connect();
  Send(socket, Token());
  ASSERT_EQ(Receive(socket).status, 0u);
  server_.reset();
  EXPECT_TRUE(leases_.List().empty());
  EXPECT_NE(::access(path_.c_str(), F_OK), 0);
}

TEST_F(FdServerTest, ASecondServerOnALiveSocketIsRefused) {
  EXPECT_EQ(FdServer::Start(path_, leases_).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ckptd

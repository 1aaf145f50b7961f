// The keeper and a daemon's side of it, over a real socket.
#include "server/keeper/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "server/keeper/keeper_client.h"
#include "server/keeper/keeper_wire.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

ino_t InodeOf(const UniqueFd& fd) {
  struct stat info = {};
  ::fstat(fd.get(), &info);
  return info.st_ino;
}

// Runs until it is told to stop or this ends.
class RunningKeeper {
 public:
  explicit RunningKeeper(const std::string& path, milliseconds linger = milliseconds(0))
      : keeper_(Keeper::Open(path).value()),
        thread_([this, linger] { why_ = keeper_->Run(stop_.get(), linger); }) {}
  ~RunningKeeper() { Stop(); }
  std::string Stop() {
    const uint64_t one = 1;
    if (thread_.joinable() && ::write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
    keeper_.reset();
    return why_;
  }
  std::string AwaitEnd() {
    thread_.join();
    return why_;
  }

 private:
  const UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  std::unique_ptr<Keeper> keeper_;
  std::string why_;
  std::thread thread_;
};

class KeeperTest : public ::testing::Test {
 protected:
  std::unique_ptr<KeeperClient> Client(const std::string& owner = "rank-0") {
    return KeeperClient::Start(path_, owner, milliseconds(0));
  }
  static ino_t Put(KeeperClient& client, const std::string& name, size_t count = 1) {
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < count; ++i) fds.push_back(NewMemfd("test"));
    const ino_t last = InodeOf(fds.back());
    client.Put(name, std::move(fds));
    return last;
  }
  UniqueFd Connect() { return ConnectToKeeper(path_, Soon()).value(); }
  static absl::StatusOr<v1::KeeperResponse> Ask(const UniqueFd& socket,
                                                const v1::KeeperRequest& request) {
    CKPTD_RETURN_IF_ERROR(SendPacket(socket.get(), request, {}, Soon()));
    CKPTD_ASSIGN_OR_RETURN(Packet<v1::KeeperResponse> answer,
                           ReceiveMessage<v1::KeeperResponse>(socket.get(), Soon()));
    return answer.message;
  }
  static v1::KeeperRequest Hello(const std::string& owner) {
    v1::KeeperRequest request;
    request.set_format(kKeeperFormat);
    request.mutable_hello()->set_owner(owner);
    return request;
  }

  TempFolder folder_;
  const std::string path_ = folder_.path() + "/k.sock";
};

TEST_F(KeeperTest, TheNextProcessGetsWhatAnEarlierOneHasPut) {
  const RunningKeeper keeper(path_);
  auto first = Client();
  const ino_t small = Put(*first, "a");
  const ino_t large = Put(*first, "b", 3 * kMaxFdsPerMessage + 1);
  Put(*first, "gone");
  first->Remove("gone");
  first.reset();
  ASSERT_OK_AND_ASSIGN(const StoredEntries left, Client()->Entries());
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(InodeOf(left.at("a").back()), small);
  ASSERT_EQ(left.at("b").size(), 3 * kMaxFdsPerMessage + 1);
  EXPECT_EQ(InodeOf(left.at("b").back()), large);
}

TEST_F(KeeperTest, ADaemonTakesNoKeeperOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be several users";
  const std::string path = folder_ / "theirs";
  UnixListener listener;
  ASSERT_EQ(::chmod(folder_.path().c_str(), 01777), 0);
  ASSERT_EQ(::seteuid(43'000), 0);  // the kernel records the user who calls listen
  listener = UnixListener::Open(path, 0777, std::nullopt, SOCK_SEQPACKET).value();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_THAT(ConnectToKeeper(path, Soon()),
              FailsWith(absl::StatusCode::kPermissionDenied, reason::kConfigInvalid));
  EXPECT_THAT(ConnectToKeeper(path, Soon()), Says("user 43000 listens there"));
}

TEST_F(KeeperTest, OwnersGetTheirOwn) {
  const RunningKeeper keeper(path_);
  Put(*Client("rank-0"), "a");
  EXPECT_TRUE(Client("rank-1")->Entries().value().empty());
  EXPECT_EQ(Client("rank-0")->Entries().value().size(), 1U);
}

TEST_F(KeeperTest, AKeeperThatIsStartedAgainIsFilledAgain) {
  auto keeper = std::make_unique<RunningKeeper>(path_);
  auto client = Client();
  const ino_t kept = Put(*client, "a");
  Put(*client, "b");
  keeper = nullptr;
  client->Remove("b");  // nobody hears it
  keeper = std::make_unique<RunningKeeper>(path_);
  while (!client->connected()) std::this_thread::yield();
  Put(*client, "c");  // waits for the refill
  client.reset();
  ASSERT_OK_AND_ASSIGN(const StoredEntries left, Client()->Entries());
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(InodeOf(left.at("a").front()), kept);
  EXPECT_EQ(left.count("c"), 1U);
}

TEST_F(KeeperTest, ADaemonBeginsWithoutAKeeperAndConnectsLater) {
  auto client = Client();
  EXPECT_FALSE(client->connected());
  Put(*client, "a");
  const RunningKeeper keeper(path_);
  while (!client->connected()) std::this_thread::yield();
  client->Remove("none");
  client.reset();
  EXPECT_EQ(Client()->Entries().value().size(), 1U);
}

TEST_F(KeeperTest, WhatADeadDaemonSaidLastIsHeardBeforeItsSuccessorAsks) {
  const RunningKeeper keeper(path_);
  Put(*Client(), "a");
  UniqueFd first = Connect();
  const auto greeted = Ask(first, Hello("rank-0"));
  ASSERT_EQ(greeted->name(), "a");
  ASSERT_OK(ReceivePacket(first.get(), Soon()));
  v1::KeeperRequest remove;
  remove.set_format(kKeeperFormat);
  remove.mutable_remove()->set_name("a");
  ASSERT_OK(SendPacket(first.get(), remove, {}, Soon()));
  first.Reset();
  EXPECT_TRUE(Client()->Entries().value().empty());
}

TEST_F(KeeperTest, ASecondDaemonOfAnOwnerThatIsConnectedIsRefused) {
  const RunningKeeper keeper(path_);
  const auto client = Client();
  const auto answer = Ask(Connect(), Hello("rank-0"));
  ASSERT_OK(answer);
  EXPECT_EQ(answer->code(), static_cast<int>(absl::StatusCode::kFailedPrecondition));
}

TEST_F(KeeperTest, ForeignBytesGetAnErrorAndHurtNobody) {
  const RunningKeeper keeper(path_);
  const auto client = Client();
  Put(*client, "a");
  for (const std::string& bytes : {std::string("\xff\xff garbage"), std::string(kMaxKeeperPacket, 'x'),
                                   std::string(64 << 10, 'y')}) {
    const UniqueFd stranger = Connect();
    ASSERT_OK(SendWithFds(stranger.get(), std::as_bytes(std::span(bytes)), {}, Soon()));
    const auto answer = ReceiveMessage<v1::KeeperResponse>(stranger.get(), Soon());
    ASSERT_OK(answer);
    EXPECT_NE(answer->message.code(), 0);
  }
  v1::KeeperRequest put;
  put.set_format(kKeeperFormat);
  put.mutable_put()->set_name("b");
  EXPECT_NE(Ask(Connect(), put)->code(), 0);  // before a hello
  EXPECT_TRUE(client->connected());
}

TEST_F(KeeperTest, ALaterFormatIsRefusedByName) {
  const RunningKeeper keeper(path_);
  v1::KeeperRequest later = Hello("rank-0");
  later.set_format(kKeeperFormat + 1);
  const auto answer = Ask(Connect(), later);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_NE(answer->message().find("format 2"), std::string::npos) << answer->message();
}

// Packets as 0.1.0 wrote them, which are never refreshed, and with a field of a later version.
TEST_F(KeeperTest, DaemonsOfOtherVersionsPutAndTakeWhatTheyHold) {
  const RunningKeeper keeper(path_);
  const std::string hello("\x08\x01\x12\x08\x0a\x06rank-0", 12);
  const std::string put("\x08\x01\x1a\x0f\x0a\x0d" "checkpoints/a", 19);
  const std::string later("\xc0\x3e\x01", 3);  // field 1000, a varint
  for (const std::string& more : {std::string(), later}) {
    const UniqueFd daemon = Connect();
    const UniqueFd memory = NewMemfd("of that daemon");
    for (const auto& [bytes, fds] : {std::pair(hello + more, std::vector<int>()),
                                     std::pair(put + more, std::vector<int>{memory.get()})}) {
      ASSERT_OK(SendWithFds(daemon.get(), std::as_bytes(std::span(bytes)), fds, Soon()));
    }
    v1::KeeperResponse last;
    while (last.message() != "done" || last.name() != "") {
      ASSERT_OK_AND_ASSIGN(const auto answer, ReceiveMessage<v1::KeeperResponse>(daemon.get(), Soon()));
      last = answer.message;
      ASSERT_EQ(last.code(), 0) << last.message();
    }
    ASSERT_OK(ReceivePacket(daemon.get(), Soon()));  // of the put
  }
  ASSERT_OK_AND_ASSIGN(const StoredEntries entries, Client()->Entries());
  EXPECT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries.count("checkpoints/a"), 1U);
}

TEST_F(KeeperTest, ItEndsWhenASupervisorEndsIt) {
  RunningKeeper keeper(path_);
  EndKeeper(Connect().get(), Soon());
  EXPECT_EQ(keeper.AwaitEnd(), "a client has ended it");
}

TEST_F(KeeperTest, ItEndsWhenNobodyIsConnectedForAsLongAsItLingers) {
  RunningKeeper keeper(path_, milliseconds(1));
  EXPECT_NE(keeper.AwaitEnd().find("nobody was connected"), std::string::npos);
}

TEST(KeeperRecord, IsReadBackWithItsDigest) {
  v1::KeptLease lease;
  lease.set_name("checkpoints/a/leases/b");
  ASSERT_OK_AND_ASSIGN(const UniqueFd record, WriteRecord(lease));
  v1::KeptLease back;
  ASSERT_OK(ReadRecord(record.get(), back));
  EXPECT_EQ(back.name(), lease.name());
  EXPECT_LT(::pwrite(record.get(), "x", 1, 0), 0);  // sealed
}

// A memfd with these bytes, sealed as a record is.
UniqueFd Sealed(const std::string& bytes) {
  UniqueFd fd = NewMemfd("test");
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return fd;
}

TEST(KeeperRecord, IsRefusedWhereItsDigestDoesNotHold) {
  v1::KeptRecord record;
  record.set_format(kKeeperFormat);
  record.set_body("body");
  record.set_digest(1);
  v1::KeptLease lease;
  EXPECT_THAT(ReadRecord(Sealed(record.SerializeAsString()).get(), lease),
              FailsWith(absl::StatusCode::kDataLoss, reason::kDigestMismatch));
  EXPECT_FALSE(ReadRecord(Sealed("no record").get(), lease).ok());
  EXPECT_FALSE(ReadRecord(NewMemfd("empty").get(), lease).ok());
}

TEST(KeeperRecord, OfALaterFormatIsRefusedWithItsVersion) {
  v1::KeptRecord record;
  record.set_format(kKeeperFormat + 1);
  record.set_version("9.9.9");
  v1::KeptLease lease;
  const absl::Status status = ReadRecord(Sealed(record.SerializeAsString()).get(), lease);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("ckptd 9.9.9"), std::string::npos) << status;
}

}  // namespace
}  // namespace ckptd

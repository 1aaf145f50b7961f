// What a listener gives to gRPC: who goes where there are too many.
#include "server/rpc/connection_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "server/rpc/acceptor.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using Room = ConnectionTable::Room;

// Both ends of a TCP connection, of which the other one is a caller's.
struct Ends {
  UniqueFd ours;
  UniqueFd callers;

  int Port() const {
    sockaddr_in address = {};
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::getsockname(callers.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    return ntohs(address.sin_port);
  }
  std::string Peer() const { return "ipv4:127.0.0.1:" + std::to_string(Port()); }
  bool Cut() const {
    pollfd polled = {callers.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 1;
  }
  void Say(const std::string& what) const {
    ASSERT_EQ(::send(callers.get(), what.data(), what.size(), 0), static_cast<ssize_t>(what.size()));
    pollfd polled = {ours.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&polled, 1, 20'000), 1);
  }
};

class ConnectionTableTest : public ::testing::Test {
 protected:
  ConnectionTableTest() { listener_ = ListenTcp("127.0.0.1:0").value(); }
  Ends Make() {
    Ends made;
    made.callers = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listener_.port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(made.callers.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
    made.ours = UniqueFd(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(made.ours.valid());
    return made;
  }
  static void Add(ConnectionTable& table, const Ends& ends) {
    ASSERT_EQ(WaitForRoom(table), Room::kYes);
    table.Add(ends.ours.get());
  }
  static Room WaitForRoom(ConnectionTable& table) {
    for (;;) {
      const Room room = table.MakeRoom();
      if (room != Room::kLater) return room;
      std::this_thread::yield();
    }
  }

  TcpListener listener_;
};

TEST_F(ConnectionTableTest, ClosesTheOldestConnectionWithoutACall) {
  ConnectionTable table({.unproven = 2});
  const Ends known = Make();
  const Ends oldest = Make();
  const Ends other = Make();
  Add(table, known);
  table.Prove(known.Peer());
  Add(table, oldest);
  Add(table, other);
  EXPECT_EQ(table.MakeRoom(), Room::kLater) << "it is young";
  EXPECT_EQ(WaitForRoom(table), Room::kYes);
  EXPECT_TRUE(oldest.Cut());
  EXPECT_FALSE(known.Cut() || other.Cut());
}

TEST_F(ConnectionTableTest, HasNoRoomWhereAllHaveMadeCallsUntilOneEnds) {
  ConnectionTable table({.open = 2});
  const Ends one = Make();
  Ends other = Make();
  const Ends* const both[] = {&one, &other};
  for (const Ends* ends : both) {
    Add(table, *ends);
    table.Prove(ends->Peer());
  }
  EXPECT_EQ(table.MakeRoom(), Room::kNo);
  other.ours.Reset();
  EXPECT_EQ(table.MakeRoom(), Room::kYes);
  EXPECT_FALSE(one.Cut());
}

// The number of a descriptor is used again at once.
TEST_F(ConnectionTableTest, LeavesASocketAloneThatHasTheNumberOfOneThatEnded) {
  ConnectionTable table({.unproven = 1, .bytes_per_call = 10});
  Ends ended = Make();
  Add(table, ended);
  const Ends others = Make();
  ASSERT_EQ(::dup3(others.ours.get(), ended.ours.get(), O_CLOEXEC), ended.ours.get());
  others.Say(std::string(100, 'x'));
  EXPECT_FALSE(table.Tend());
  EXPECT_EQ(table.MakeRoom(), Room::kYes);
  EXPECT_FALSE(others.Cut());
}

TEST_F(ConnectionTableTest, TakesACallerForProvenThatHasSentMoreThanAHandshake) {
  ConnectionTable table({.unproven = 1, .proving_bytes = 1000});
  const Ends sender = Make();
  Add(table, sender);
  sender.Say(std::string(1001, 'x'));
  EXPECT_EQ(WaitForRoom(table), Room::kYes);
  EXPECT_FALSE(sender.Cut());
}

TEST_F(ConnectionTableTest, CutsOffACallerThatSendsTooMuchWithoutACall) {
  ConnectionTable table({.bytes_per_call = 1000});
  const Ends modest = Make();
  const Ends flood = Make();
  Add(table, modest);
  Add(table, flood);
  for (int i = 0; i < 3; ++i) {
    modest.Say(std::string(900, 'x'));
    EXPECT_TRUE(table.Tend());
    table.Prove(modest.Peer());
  }
  flood.Say(std::string(900, 'x'));
  EXPECT_TRUE(table.Tend());
  EXPECT_FALSE(flood.Cut());
  flood.Say(std::string(101, 'x'));
  EXPECT_TRUE(table.Tend());
  EXPECT_TRUE(flood.Cut());
  EXPECT_FALSE(modest.Cut());
}

TEST_F(ConnectionTableTest, KnowsACallerByEitherKindOfAddress) {
  listener_ = ListenTcp("[::]:0").value();
  ConnectionTable table({.unproven = 1});
  const Ends mapped = Make();  // an IPv6 socket on our side
  Add(table, mapped);
  table.Prove(mapped.Peer());
  EXPECT_EQ(table.MakeRoom(), Room::kYes);
}

}  // namespace
}  // namespace ckptd

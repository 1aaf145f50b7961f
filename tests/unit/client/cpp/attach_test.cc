#include "client/cpp/attach.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/client/fake_fd_socket.h"

namespace ckptd {
namespace {

using fake::FakeFdSocket;
using fake::MemoryOf;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

class AttachTest : public ::testing::Test {
 protected:
  AttachTest() : server_(dir_ / "fd.sock") {
    request_.fd_socket = server_.path();
    request_.token = fake::kToken;
    request_.segment_bytes = {4096, 100};
    first_ = MemoryOf(std::string(4096, 'x'));
    second_ = MemoryOf(std::string(100, 'y'));
  }

  void SendBoth(int socket) const {
    FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 2, 0), {first_.get(), second_.get()});
  }

  TempFolder dir_;
  UniqueFd first_;
  UniqueFd second_;
  FakeFdSocket server_;
  AttachRequest request_;
};

TEST_F(AttachTest, MapsTheSegmentsBackToBack) {
  server_.set_answer([this](int socket) { SendBoth(socket); });
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(request_));
  EXPECT_EQ(attached.slab_bytes, 4196U);
  EXPECT_EQ(attached.mapping.data()[4095], std::byte{'x'});
  EXPECT_EQ(attached.mapping.data()[4096], std::byte{'y'});
}

TEST_F(AttachTest, TakesDescriptorsFromSeveralMessages) {
  server_.set_answer([this](int socket) {
    FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 1, 1), {first_.get()});
    FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 1, 0), {second_.get()});
  });
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(request_));
  EXPECT_EQ(attached.mapping.data()[4096], std::byte{'y'});
}

TEST_F(AttachTest, TakesMoreDescriptorsThanOneMessageHolds) {
  constexpr uint32_t kSegments = 300;
  request_.segment_bytes.assign(kSegments, 4096);
  server_.set_answer([this](int socket) {
    for (uint32_t sent = 0; sent < kSegments;) {
      const uint32_t now = std::min<uint32_t>(128, kSegments - sent);
      sent += now;
      FakeFdSocket::Send(socket, FakeFdSocket::Header(0, now, kSegments - sent),
                         std::vector<int>(now, first_.get()));
    }
  });
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(request_));
  EXPECT_EQ(attached.slab_bytes, kSegments * 4096U);
}

TEST_F(AttachTest, HoldsALeaseOfAnEmptyShard) {
  request_.segment_bytes.clear();
  server_.set_answer([](int socket) { FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 0, 0)); });
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(request_));
  EXPECT_TRUE(attached.lease.valid());
  EXPECT_FALSE(attached.mapping.valid());
}

TEST_F(AttachTest, EndsTheLeaseWhenItIsDropped) {
  server_.set_answer([this](int socket) { SendBoth(socket); });
  {
    const auto attached = Attach(request_);
    ASSERT_OK(attached);
    EXPECT_EQ(server_.ended(), 0);
  }
  EXPECT_TRUE(server_.WaitForEnded(1));
}

TEST_F(AttachTest, GivesAPrivateViewThatLeavesTheSourceAlone) {
  server_.set_answer([this](int socket) { SendBoth(socket); });
  request_.mode = AttachMode::kPrivate;
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(request_));
  attached.mapping.data()[0] = std::byte{'z'};
  char byte = 0;
  ASSERT_EQ(::pread(first_.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(AttachTest, WritesThroughAnExclusiveOne) {
  first_ = MemoryOf(std::string(4096, 'x'), true);
  second_ = MemoryOf(std::string(100, 'y'), true);
  server_.set_answer([this](int socket) { SendBoth(socket); });
  request_.mode = AttachMode::kExclusive;
  ASSERT_OK_AND_ASSIGN(const Attached attached, Attach(request_));
  attached.mapping.data()[0] = std::byte{'z'};
  char byte = 0;
  ASSERT_EQ(::pread(first_.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'z');
}

TEST_F(AttachTest, PassesTheDaemonsRefusalOn) {
  server_.set_answer([](int socket) {
    const std::string why = "the token has expired; acquire the shard again";
    std::string length(4, '\0');
    length[0] = static_cast<char>(why.size());
    FakeFdSocket::Send(socket, FakeFdSocket::Header(16, 0, 0) + length + why);
  });
  const auto attached = Attach(request_);
  EXPECT_THAT(attached, FailsWith(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid));
  EXPECT_THAT(attached, Says("the token has expired"));
}

TEST_F(AttachTest, RefusesARefusalOfEndlessLength) {
  server_.set_answer([](int socket) {
    FakeFdSocket::Send(socket, FakeFdSocket::Header(16, 0, 0) + "\xff\xff\xff\x7f");
  });
  EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST_F(AttachTest, RefusesAnAnswerOfSomethingElse) {
  server_.set_answer([](int socket) { FakeFdSocket::Send(socket, "HTTP/1.1 200 OK\r\n"); });
  EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST_F(AttachTest, RefusesFewerDescriptorsThanAnnounced) {
  server_.set_answer([this](int socket) {
    FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 2, 0), {first_.get()});
  });
  EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST_F(AttachTest, RefusesMoreDescriptorsThanSegments) {
  server_.set_answer([this](int socket) {
    FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 3, 0),
                       {first_.get(), second_.get(), second_.get()});
  });
  EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST_F(AttachTest, RefusesToWaitForNothingOverAndOver) {
  server_.set_answer([](int socket) { FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 0, 2)); });
  EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply));
}

TEST_F(AttachTest, RefusesMemoryShorterThanItsSegment) {
  request_.segment_bytes = {4096, 101};
  server_.set_answer([this](int socket) { SendBoth(socket); });
  const auto attached = Attach(request_);
  EXPECT_THAT(attached, FailsWith(kDataLoss, reason::kInvalidReply));
  EXPECT_THAT(attached, Says("101"));
}

TEST_F(AttachTest, GivesUpOnAMuteDaemonInTime) {
  request_.timeout = std::chrono::milliseconds(200);
  EXPECT_THAT(Attach(request_), FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
}

TEST_F(AttachTest, SaysThatNobodyListens) {
  request_.fd_socket = dir_ / "none.sock";
  EXPECT_THAT(Attach(request_),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
}

TEST_F(AttachTest, NeverSendsATokenThatIsNone) {
  for (const char* token :
       {"", "0123", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef0"}) {
    request_.token = token;
    EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply)) << token;
  }
}

TEST_F(AttachTest, RefusesSizesThatDoNotAddUp) {
  request_.segment_bytes = {4096, UINT64_MAX - 100};
  EXPECT_THAT(Attach(request_), FailsWith(kDataLoss, reason::kInvalidReply));
}

}  // namespace
}  // namespace ckptd

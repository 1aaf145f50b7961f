#include "client/cpp/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "client/cpp/client.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/fake_daemon.h"

namespace ckptd {
namespace {

using fake::FakeDaemon;

class ShardTest : public ::testing::Test {
 protected:
  Client Connect() {
    daemon_.Start();
    ConnectOptions options;
    options.address.argument = daemon_.socket();
    return Client::Connect(options).value();
  }
  absl::StatusOr<Shard> Acquire(AttachMode mode = AttachMode::kShared) {
    Client client = Connect();
    return client.Acquire("checkpoints/ab12", {.mode = mode});
  }

  FakeDaemon daemon_;
};

TEST_F(ShardTest, ShowsTheBytesOfEachTensor) {
  ASSERT_OK_AND_ASSIGN(const Shard shard, Acquire());
  const ShardTensor* tensor = shard.Find("a");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (Shape{100}));
  const std::string bytes = FakeDaemon::SlabBytes();
  EXPECT_EQ(std::memcmp(tensor->data, bytes.data() + 4096, 100), 0);
}

TEST_F(ShardTest, FindsTensorsByNameAndAliasAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(const Shard shard, Acquire());
  ASSERT_NE(shard.Find("tied"), nullptr);
  EXPECT_EQ(shard.Find("tied")->name, "a");
  EXPECT_EQ(shard.Find("b")->dtype, Dtype::kF32);
  EXPECT_EQ(shard.Find("bb"), nullptr);
  EXPECT_EQ(shard.Find(""), nullptr);
}

TEST_F(ShardTest, GivesUpADaemonThatStandsStillBeforeItHandsTheMemoryOver) {
  daemon_.fd_socket().set_answer([](int) {});
  daemon_.Start();
  ConnectOptions options;
  options.address.argument = daemon_.socket();
  options.gone_timeout = std::chrono::milliseconds(100);
  Client client = Client::Connect(options).value();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT(client.Acquire("checkpoints/ab12").status(),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_LT(std::chrono::steady_clock::now() - began, options.call_timeout / 2);
}

TEST_F(ShardTest, OutlivesItsClient) {
  absl::StatusOr<Shard> shard = Acquire();
  ASSERT_OK(shard);
  EXPECT_EQ(shard->Find("b")->data[0], std::byte{1});
  EXPECT_EQ(daemon_.fd_socket().ended(), 0);
}

TEST_F(ShardTest, EndsItsLeaseWhenItIsDestroyed) {
  { ASSERT_OK(Acquire()); }
  EXPECT_TRUE(daemon_.fd_socket().WaitForEnded(1));
}

TEST_F(ShardTest, EndsTheLeaseOfTheOneItReplaces) {
  Client client = Connect();
  ASSERT_OK_AND_ASSIGN(Shard shard, client.Acquire("checkpoints/ab12"));
  ASSERT_OK_AND_ASSIGN(shard, client.Acquire("checkpoints/ab12"));
  EXPECT_TRUE(daemon_.fd_socket().WaitForEnded(1));
  EXPECT_EQ(shard.Find("b")->data[0], std::byte{1});
}

TEST_F(ShardTest, IsEmptyAfterARelease) {
  ASSERT_OK_AND_ASSIGN(Shard shard, Acquire());
  shard.Release();
  shard.Release();
  EXPECT_TRUE(shard.tensors().empty());
  EXPECT_EQ(shard.Find("b"), nullptr);
  EXPECT_TRUE(daemon_.fd_socket().WaitForEnded(1));
}

TEST_F(ShardTest, OffersNothingToWriteWhenShared) {
  ASSERT_OK_AND_ASSIGN(const Shard shard, Acquire());
  EXPECT_TRUE(shard.MutableBytes(*shard.Find("b")).empty());
}

TEST_F(ShardTest, OffersPaddedBytesToWriteWhenPrivate) {
  daemon_.answers.acquire.set_mode(v1::ATTACH_MODE_PRIVATE);
  ASSERT_OK_AND_ASSIGN(const Shard shard, Acquire(AttachMode::kPrivate));
  EXPECT_EQ(daemon_.last_acquire.mode(), v1::ATTACH_MODE_PRIVATE);
  const std::span<std::byte> bytes = shard.MutableBytes(*shard.Find("b"));
  ASSERT_EQ(bytes.size(), 128U);
  bytes[127] = std::byte{9};
  EXPECT_EQ(shard.Find("b")->data[127], std::byte{9});
}

TEST_F(ShardTest, IsRefusedInAModeThatWasNotAskedFor) {
  daemon_.answers.acquire.set_mode(v1::ATTACH_MODE_EXCLUSIVE);
  EXPECT_THAT(Acquire().status(), Says("EXCLUSIVE, not as SHARED"));
}

TEST_F(ShardTest, IsRefusedWhenItIsOfAnotherLoad) {
  daemon_.answers.acquire.set_lease("checkpoints/ab123/leases/1");
  EXPECT_THAT(Acquire().status(), Says("asked for checkpoints/ab12 it leases checkpoints/ab123"));
  EXPECT_EQ(daemon_.released, std::vector<std::string>{"checkpoints/ab123/leases/1"});
}

TEST_F(ShardTest, CollectsFurtherPagesOfItsTable) {
  v1::ListShardTensorsResponse page;
  v1::TensorTable& table = *page.mutable_tensors();
  table.add_names("late");
  table.add_dtypes(v1::DTYPE_U8);
  table.add_ranks_of_shape(0);
  table.add_offsets(0);
  table.add_bytes(1);
  table.add_padded_bytes(1);
  daemon_.answers.further_pages = {page};
  daemon_.answers.acquire.set_next_page_token("0");
  daemon_.answers.acquire.set_tensor_count(4);
  ASSERT_OK_AND_ASSIGN(const Shard shard, Acquire());
  ASSERT_NE(shard.Find("late"), nullptr);
  EXPECT_EQ(shard.Find("late")->data[0], std::byte{1});
}

TEST_F(ShardTest, IsRefusedWhenItsTableIsShort) {
  daemon_.answers.acquire.set_tensor_count(4);
  EXPECT_THAT(Acquire().status(), Says("announced 4 tensors and listed 3"));
}

TEST_F(ShardTest, IsRefusedWhenANameComesTwice) {
  daemon_.answers.acquire.mutable_tensors()->set_names(0, "a");
  const absl::Status refused = Acquire().status();
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kDataLoss, reason::kInvalidReply));
  EXPECT_THAT(refused, Says("comes twice"));
}

// Its connection is the lease. Nothing else may end it, because memory may still be in use.
TEST_F(ShardTest, EndsTheLeaseWhenItCannotBeUsed) {
  daemon_.answers.acquire.mutable_tensors()->set_offsets(1, 8192);
  EXPECT_THAT(Acquire().status(),
              FailsWith(absl::StatusCode::kDataLoss, reason::kInvalidReply));
  EXPECT_THAT(daemon_.released, testing::IsEmpty());
  EXPECT_TRUE(daemon_.fd_socket().WaitForEnded(1));
}

// An exclusive lease takes the memory from the daemon. It must not be lost to a process that
// cannot use that GPU.
TEST_F(ShardTest, ShowsNoTokenForMemoryOfAGpuThatIsNotVisible) {
  daemon_.answers.acquire.set_mode(v1::ATTACH_MODE_EXCLUSIVE);
  daemon_.answers.acquire.clear_memfd();
  v1::VmmFdHandle& handle = *daemon_.answers.acquire.mutable_vmm_fd();
  handle.set_fd_socket(daemon_.fd_socket().path());
  handle.set_device_uuid("GPU-00000000-0000-0000-0000-00000000dead");
  handle.set_allocation_bytes(uint64_t{2} << 20);
  handle.set_writable(true);
  bool shown = false;
  daemon_.fd_socket().set_answer([&shown](int) { shown = true; });
  const auto shard = Acquire(AttachMode::kExclusive);
  EXPECT_THAT(shard.status(), FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNoDevice));
  EXPECT_THAT(daemon_.released, testing::ElementsAre("checkpoints/ab12/leases/1"));
  EXPECT_FALSE(shown);
}

TEST_F(ShardTest, MayBeEmpty) {
  daemon_.segments.clear();
  v1::AcquireShardResponse& acquire = daemon_.answers.acquire;
  acquire.set_slab_bytes(0);
  acquire.set_tensor_count(0);
  acquire.clear_tensors();
  acquire.mutable_memfd()->clear_segment_bytes();
  ASSERT_OK_AND_ASSIGN(const Shard shard, Acquire());
  EXPECT_TRUE(shard.tensors().empty());
  EXPECT_EQ(shard.slab_bytes(), 0U);
}

}  // namespace
}  // namespace ckptd

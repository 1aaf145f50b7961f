// What one daemon leaves and the next one takes over, with a store in this process.
#include "server/daemon/keeping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/keeping_process.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kName = kKeptName;

// Entries that outlive a MapStore, as those of a keeper outlive a daemon.
class MapStore final : public DescriptorStore {
 public:
  explicit MapStore(StoredEntries& entries) : entries_(entries) {}
  absl::StatusOr<StoredEntries> Entries() override {
    StoredEntries copy;
    for (const auto& [name, fds] : entries_) {
      for (const UniqueFd& fd : fds) copy[name].push_back(DuplicateFd(fd.get(), "test").value());
    }
    return copy;
  }
  void Put(const std::string& name, std::vector<UniqueFd> fds) override {
    entries_[name] = std::move(fds);
  }
  void Remove(const std::string& name) override { entries_.erase(name); }
  std::string endpoint() const override { return "a map"; }
  bool connected() const override { return true; }

 private:
  StoredEntries& entries_;
};

class KeepingTest : public ::testing::Test {
 protected:
  std::unique_ptr<KeepingProcess> NewProcess(uint32_t world_size) {
    return std::make_unique<KeepingProcess>(std::make_unique<MapStore>(entries_), world_size);
  }
  // The daemon dies, and the next one comes.
  void Restart(uint32_t world_size = 1) {
    process_ = nullptr;
    process_ = NewProcess(world_size);
  }
  std::vector<std::string> Dropped() const { return process_->keeping.state().dropped; }

  StoredEntries entries_;
  std::unique_ptr<KeepingProcess> process_ = NewProcess(1);
};

TEST_F(KeepingTest, TheNextDaemonHasTheCheckpointWithAllThatClientsSeeOfIt) {
  ASSERT_OK(process_->Load());
  ASSERT_OK(process_->catalog.Pin(kName, true));
  const CheckpointInfo before = process_->catalog.Get(kName).value();
  const auto asked = process_->catalog.FindMatch(RuleRequest());
  Restart();
  ASSERT_THAT(process_->Active(), ElementsAre(kName));
  const CheckpointInfo now = process_->catalog.Get(kName).value();
  EXPECT_EQ(now.source, before.source);
  EXPECT_EQ(now.identity, before.identity);
  EXPECT_EQ(now.source_identity, before.source_identity);
  EXPECT_EQ(now.plan_digest, before.plan_digest);
  EXPECT_EQ(now.slab_bytes, before.slab_bytes);
  EXPECT_EQ(now.tensor_count, before.tensor_count);
  EXPECT_EQ(now.created, before.created);
  EXPECT_TRUE(now.pinned);
  const auto match = process_->catalog.FindMatch(RuleRequest());
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->files, asked->files);
  EXPECT_TRUE(process_->catalog.HasActive(kName, ShardOf(1).plan.digest));
  EXPECT_EQ(process_->catalog.Residents().at(0).request_digests.size(), 1U);
  const auto shard = process_->catalog.leases().Look(kName).value();
  EXPECT_EQ(ReadBytes(shard.memory->View(), 0, 1)[0], std::byte{0x5a});
}

TEST_F(KeepingTest, ItComesBackAgainAndAgain) {
  ASSERT_OK(process_->Load());
  for (int i = 0; i < 3; ++i) Restart();
  EXPECT_THAT(process_->Active(), ElementsAre(kName));
}

TEST_F(KeepingTest, ChangedBytesAreRefusedAndNamed) {
  ASSERT_OK(process_->Load());
  const auto shard = process_->catalog.leases().Look(kName).value();
  shard.memory->View().segments[0][1] = std::byte{0};
  Restart();
  EXPECT_THAT(process_->Active(), IsEmpty());
  EXPECT_THAT(Dropped(), ElementsAre(testing::AllOf(HasSubstr(kName), HasSubstr("bytes of w"))));
  EXPECT_THAT(entries_, IsEmpty());
}

TEST_F(KeepingTest, ADaemonOfAnotherWorldSizeRefusesIt) {
  ASSERT_OK(process_->Load());
  Restart(2);
  EXPECT_THAT(process_->Active(), IsEmpty());
  EXPECT_THAT(Dropped(), ElementsAre(HasSubstr("rank 0 of 1, this daemon is rank 0 of 2")));
}

TEST_F(KeepingTest, EntriesThatAreNoneAreRefused) {
  ASSERT_OK(process_->Load());
  entries_["checkpoints/b"] = std::move(entries_[kName]);
  entries_[kName].push_back(NewMemfd("no record"));
  entries_["checkpoints/c/leases/d"].push_back(NewMemfd("no record"));
  Restart();
  EXPECT_EQ(Dropped().size(), 3U);
  EXPECT_THAT(entries_, IsEmpty());
}

TEST_F(KeepingTest, WhatIsUnloadedOrEvictedDoesNotComeBack) {
  ASSERT_OK(process_->Load());
  ASSERT_OK(process_->catalog.Unload(kName, false));
  EXPECT_THAT(entries_, IsEmpty());
  ASSERT_OK(process_->Load());
  ASSERT_OK(process_->catalog.eviction().MakeRoom(
      4 * kSmallSegment, absl::ResourceExhaustedError("no memory")));
  EXPECT_THAT(entries_, IsEmpty());
}

TEST_F(KeepingTest, WhatIsUnloadedByForceDoesNotComeBackThoughAClientHoldsIt) {
  ASSERT_OK(process_->Load());
  const auto held = process_->leases.Open(kName, AttachMode::kShared);
  ASSERT_OK(process_->catalog.Unload(kName, true));
  EXPECT_THAT(entries_, IsEmpty());
}

TEST_F(KeepingTest, MemoryIsNotKeptAnyMoreBeforeAnExclusiveClientHasIt) {
  LoadRequest request = RuleRequest();
  request.intended = AttachMode::kExclusive;
  ASSERT_OK(process_->Load(request));
  Restart();
  ASSERT_THAT(process_->Active(), ElementsAre(kName));
  const auto lease = process_->leases.Open(kName, AttachMode::kExclusive);
  EXPECT_EQ(entries_.count(kName), 1U);
  ASSERT_OK(process_->leases.Redeem(lease->token, 1, 1));
  EXPECT_EQ(entries_.count(kName), 0U);
}

TEST_F(KeepingTest, WhatHasNoDigestsIsNotKept) {
  LoadRequest request = RuleRequest();
  request.digests = false;
  ASSERT_OK(process_->Load(request));
  EXPECT_THAT(entries_, IsEmpty());
}

TEST_F(KeepingTest, LeasesComeBackWithTheirConnections) {
  ASSERT_OK(process_->Load());
  const auto ticket = process_->leases.Open(kName, AttachMode::kPrivate);
  ASSERT_OK(process_->leases.Redeem(ticket->token, 1, 1));
  int pair[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd client(pair[1]);
  process_->leases.Keep(ticket->lease, pair[0]);
  const LeaseInfo before = process_->leases.List().at(0);
  ::close(pair[0]);  // the daemon's own descriptor ends with it
  Restart();
  ASSERT_EQ(process_->leases.List().size(), 1U);
  const LeaseInfo lease = process_->leases.List()[0];
  EXPECT_EQ(lease.name, before.name);
  EXPECT_EQ(lease.checkpoint, kName);
  EXPECT_EQ(lease.mode, AttachMode::kPrivate);
  EXPECT_EQ(lease.created, before.created);
  EXPECT_EQ(lease.pid, ::getpid());  // as the kernel tells of the connection
  EXPECT_TRUE(lease.connected);
  EXPECT_EQ(process_->catalog.Get(kName).value().leases, 1U);
  const auto connections = process_->keeping.TakeConnections();
  ASSERT_EQ(connections.size(), 1U);
  EXPECT_EQ(::write(connections[0].socket.get(), "x", 1), 1);
  char read = 0;
  EXPECT_EQ(::read(client.get(), &read, 1), 1);
  process_->leases.End(lease.name);
  EXPECT_EQ(entries_.count(lease.name), 0U);
  EXPECT_EQ(entries_.count(kName), 1U);
}

// Its lease is named after the view, and comes first in the order of names.
TEST_F(KeepingTest, TheLeaseOfAViewComesBackWithTheMemoryThatItHolds) {
  ASSERT_OK(process_->Load(RuleRequest(), "checkpoints/z"));
  LeaseInfo lease;
  lease.name = "checkpoints/a-view/leases/b";
  lease.checkpoint = "checkpoints/z";
  int pair[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd client(pair[1]);
  process_->keeping.KeepLease(lease, pair[0]);
  ::close(pair[0]);
  Restart();
  ASSERT_EQ(process_->leases.List().size(), 1U);
  EXPECT_EQ(process_->leases.List()[0].name, lease.name);
}

TEST_F(KeepingTest, WhatWasLoadedForAGuestStaysThatGuests) {
  LoadRequest request = RuleRequest();
  request.guest = Caller{61'001, 62'000, {62'000}};
  ASSERT_OK(process_->Load(request));
  Restart();
  ASSERT_THAT(process_->Active(), ElementsAre(kName));
  EXPECT_EQ(process_->catalog.Get(kName).value().loaded_for, 61'001U);
  EXPECT_FALSE(process_->catalog.FindMatch(RuleRequest()).has_value());
  EXPECT_TRUE(process_->catalog.FindMatch(request).has_value());
}

TEST_F(KeepingTest, ALeaseEndsWithACheckpointThatIsRefused) {
  ASSERT_OK(process_->Load());
  const auto ticket = process_->leases.Open(kName, AttachMode::kShared);
  int pair[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd client(pair[1]);
  process_->leases.Keep(ticket->lease, pair[0]);
  ::close(pair[0]);
  entries_[kName].front() = NewMemfd("no record");
  Restart();
  EXPECT_THAT(process_->leases.List(), IsEmpty());
  EXPECT_EQ(Dropped().size(), 2U);
  char read = 0;
  EXPECT_EQ(::read(client.get(), &read, 1), 0);  // hung up
}

}  // namespace
}  // namespace ckptd

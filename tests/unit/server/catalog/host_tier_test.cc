// Pristine copies, and loads that need no storage because of them.
#include "server/catalog/host_tier.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/load/load_runner.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/small_memory.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

class HostTierTest : public ::testing::Test {
 protected:
  // A slab that begins with `bytes` of that letter.
  std::unique_ptr<Slab> ReleaseStaging(char letter, uint64_t bytes = 100'000) {
    auto slab = memory_->Allocate(bytes, AttachMode::kExclusive).value();
    WriteBytes(slab->view(), 0, std::vector<std::byte>(bytes, std::byte(letter)));
    return slab;
  }
  static HostTier::Key KeyOf(uint64_t digest, uint64_t bytes = 7) {
    SourceFile file;
    file.path = "/models/a";
    file.bytes = bytes;
    return {digest, {file}};
  }
  // The letter that the copy of a key brings; ' ' when there is none.
  char Letter(HostTier& tier, const HostTier::Key& key, bool digests = false) {
    const auto slab = ReleaseStaging('-');
    const auto restored = tier.Restore(key, digests, slab->view());
    EXPECT_OK(restored);
    const auto bytes = ReadBytes(slab->view(), 0, 100'000);
    for (const std::byte byte : bytes) EXPECT_EQ(byte, bytes[0]);
    return restored->done ? static_cast<char>(bytes[0]) : ' ';
  }

  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(16);
  std::unique_ptr<HostMemory> behind_ = MakeSmallMemory(2);
  HostTier tier_{behind_.get(), 3};
};

TEST_F(HostTierTest, GivesBackWhatItKept) {
  tier_.Keep("a", KeyOf(1), ReleaseStaging('a')->view(), 100'000, {5, 6});
  const auto slab = ReleaseStaging('-');
  ASSERT_OK_AND_ASSIGN(const HostTier::Restored restored,
                       tier_.Restore(KeyOf(1), true, slab->view()));
  EXPECT_TRUE(restored.done);
  EXPECT_THAT(restored.digests, ElementsAre(5, 6));
  EXPECT_EQ(Letter(tier_, KeyOf(1)), 'a') << "more than once";
}

TEST_F(HostTierTest, TakesNothingForWhatItHasNot) {
  tier_.Keep("a", KeyOf(1), ReleaseStaging('a')->view(), 100'000, {});
  EXPECT_EQ(Letter(tier_, KeyOf(2)), ' ') << "another plan";
  EXPECT_EQ(Letter(tier_, KeyOf(1, 8)), ' ') << "other files";
  EXPECT_EQ(Letter(tier_, KeyOf(1), true), ' ') << "no digests were computed";
}

TEST_F(HostTierTest, GivesUpWhatWasUsedLeastRecentlyForWhatIsNew) {
  tier_.Keep("a", KeyOf(1), ReleaseStaging('a')->view(), 100'000, {});
  tier_.Keep("b", KeyOf(2), ReleaseStaging('b')->view(), 100'000, {});
  EXPECT_EQ(Letter(tier_, KeyOf(1)), 'a');
  tier_.Keep("c", KeyOf(3), ReleaseStaging('c')->view(), 100'000, {});
  EXPECT_EQ(Letter(tier_, KeyOf(1)), 'a');
  EXPECT_EQ(Letter(tier_, KeyOf(2)), ' ');
  EXPECT_EQ(Letter(tier_, KeyOf(3)), 'c');
}

TEST_F(HostTierTest, KeepsWhatItHasWhenSomethingLargerThanAllOfItComes) {
  tier_.Keep("a", KeyOf(1), ReleaseStaging('a')->view(), 100'000, {});
  const uint64_t large = 3 * kSmallSegment;
  tier_.Keep("b", KeyOf(2), ReleaseStaging('b', large)->view(), large, {});
  EXPECT_EQ(Letter(tier_, KeyOf(1)), 'a');
  EXPECT_EQ(Letter(tier_, KeyOf(2)), ' ');
}

TEST_F(HostTierTest, GivesItsMemoryBackWithTheCheckpoint) {
  tier_.Keep("a", KeyOf(1), ReleaseStaging('a')->view(), 100'000, {});
  EXPECT_GT(tier_.used(), 0);
  EXPECT_EQ(tier_.Drop("b"), 0);
  EXPECT_EQ(tier_.Drop("a"), 100'000);
  EXPECT_EQ(tier_.used(), 0);
  EXPECT_EQ(Letter(tier_, KeyOf(1)), ' ');
}

TEST_F(HostTierTest, WithoutMemoryDoesNothing) {
  HostTier none(nullptr, 1);
  none.Keep("a", KeyOf(1), ReleaseStaging('a')->view(), 100'000, {});
  EXPECT_EQ(Letter(none, KeyOf(1)), ' ');
}

// Loads of a group whose clients take the memory.
class TakenShards : public ::testing::Test {
 protected:
  LoadOutcome Run(const std::string& name, const std::string& rules, bool digests = true) {
    ReadyLoad load;
    load.name = name;
    load.request = RuleRequest(rules, source_.path());
    load.request.intended = AttachMode::kExclusive;
    load.request.digests = digests;
    load.deadline = Soon();
    load.request_digests.assign(group_.size(), RequestDigest(load.request));
    LoadRunner::Parts parts{group_.rank(0).catalog, group_.membership(), group_.peers(),
                            stopping_, {.threads = 2}};
    return LoadRunner(parts, load, group_.membership().CurrentSession().value()).Run();
  }
  // As a trainer that takes the memory and changes it.
  void Take(uint32_t rank, const std::string& name) {
    Catalog& catalog = group_.rank(rank).catalog;
    ASSERT_OK_AND_ASSIGN(const ShardLeases::Held held, catalog.leases().Hold(name, AttachMode::kExclusive));
    ASSERT_OK(held.memory->Export(AttachMode::kExclusive));
    WriteBytes(held.memory->View(), 0, std::vector<std::byte>(500, std::byte{0xee}));
    held.memory->TransferOwnership();
    catalog.leases().MarkTaken(name, held.generation);
    catalog.leases().Release(name, held.generation);
  }
  const Progress& ProgressOf(uint32_t rank, const std::string& name) {
    return infos_.emplace_back(group_.rank(rank).catalog.Get(name).value()).progress;
  }

  SmallSource source_;
  GroupInProcess group_{2};
  std::atomic<bool> stopping_ = false;
  std::deque<CheckpointInfo> infos_;
};

TEST_F(TakenShards, ComeBackAsTheyWereWithoutStorage) {
  ASSERT_OK(Run("one", "fsdp:2").status);
  for (uint32_t rank = 0; rank < 2; ++rank) Take(rank, "one");
  const LoadOutcome again = Run("two", "fsdp:2");
  ASSERT_OK(again.status);
  EXPECT_THAT(again.holders, ElementsAre(0, 1));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Catalog& catalog = group_.rank(rank).catalog;
    EXPECT_EQ(BytesOf(catalog, "two", 0),
              Rows(source_.a(), 1000, rank == 0 ? 0 : 4, rank == 0 ? 4 : 7));
    EXPECT_EQ(catalog.leases().Look("two")->shard->digests.size(), 2);
    EXPECT_EQ(ProgressOf(rank, "two").read.storage_bytes, 0);
    EXPECT_EQ(ProgressOf(rank, "two").restored_bytes, ProgressOf(rank, "two").bytes_done);
    EXPECT_GT(ProgressOf(rank, "two").restored_bytes, 0);
  }
}

TEST_F(TakenShards, ComeBackFromStorageOnRanksThatHaveNoCopy) {
  ASSERT_OK(Run("one", "replicate:2").status);
  for (uint32_t rank = 0; rank < 2; ++rank) Take(rank, "one");
  group_.rank(1).host_tier.Drop("one");
  ASSERT_OK(Run("two", "replicate:2").status);
  EXPECT_EQ(ProgressOf(0, "two").restored_bytes, ProgressOf(0, "two").bytes_done);
  EXPECT_EQ(ProgressOf(1, "two").restored_bytes, 0);
  EXPECT_GT(ProgressOf(1, "two").read.storage_bytes, 0);
  EXPECT_EQ(BytesOf(group_.rank(1).catalog, "two", 1), Rows(source_.b(), 300, 0, 5));
}

TEST_F(TakenShards, OfFilesThatHaveChangedAreReadAgain) {
  ASSERT_OK(Run("one", "fsdp:2").status);
  for (uint32_t rank = 0; rank < 2; ++rank) Take(rank, "one");
  const auto touched = std::filesystem::last_write_time(source_.path()) - std::chrono::hours(1);
  std::filesystem::last_write_time(source_.path(), touched);
  ASSERT_OK(Run("two", "fsdp:2").status);
  EXPECT_GT(ProgressOf(0, "two").read.storage_bytes, 0);
}

TEST_F(TakenShards, WithoutDigestsAreReadAgainWhenDigestsAreWanted) {
  ASSERT_OK(Run("one", "fsdp:2", false).status);
  for (uint32_t rank = 0; rank < 2; ++rank) Take(rank, "one");
  ASSERT_OK(Run("two", "fsdp:2", true).status);
  EXPECT_GT(ProgressOf(0, "two").read.storage_bytes, 0);
  EXPECT_EQ(group_.rank(0).catalog.leases().Look("two")->shard->digests.size(), 2);
}

}  // namespace
}  // namespace ckptd

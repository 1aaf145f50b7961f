// What every communicator of the seam server/comm/group_comm.h does. A Bench provides
//   Run(names, body)   runs body(CommRank) for each rank of a communicator of these names
// Bodies may run in processes of their own, so they must not change variables of the test.
#ifndef CKPTD_TESTS_CONTRACT_COMM_COMM_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_COMM_COMM_CONTRACT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/comm/group_comm.h"

namespace ckptd {

// One rank's end of a communicator, before it joins.
struct CommRank {
  uint32_t rank = 0;
  std::vector<uint32_t> names;
  std::string id;
  GroupComms* comms = nullptr;
  // Zeroed memory that the communicator can carry.
  std::function<std::unique_ptr<StagedMemory>(uint64_t bytes)> memory;
  // Fills `bytes` of such memory with one value.
  std::function<void(StagedMemory&, uint64_t offset, uint64_t bytes, int value)> fill;

  static GroupComm::Deadline In(std::chrono::milliseconds time) {
    return std::chrono::steady_clock::now() + time;
  }
  static GroupComm::Deadline Patiently() { return In(std::chrono::seconds(60)); }

  std::unique_ptr<GroupComm> Join(std::function<absl::Status()> interrupted = nullptr) const {
    GroupCommOptions options;
    options.id = id;
    options.rank = rank;
    options.names = names;
    options.name = "contract";
    options.interrupted = std::move(interrupted);
    auto joined = comms->Join(std::move(options), Patiently());
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? *std::move(joined) : nullptr;
  }
};

// A signal from one rank to another, across threads or processes.
class Word {
 public:
  Word() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Word() {
    for (const int end : ends_) ::close(end);
  }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  void Say() const { EXPECT_EQ(::write(ends_[1], "", 1), 1); }
  void Await() const {
    pollfd heard = {ends_[0], POLLIN, 0};
    EXPECT_EQ(::poll(&heard, 1, 30'000), 1) << "the other rank says nothing";
  }

 private:
  int ends_[2] = {-1, -1};
};

inline bool AllAre(StagedMemory& memory, uint64_t offset, uint64_t bytes, int value) {
  std::vector<std::byte> found(bytes);
  const absl::Status read = memory.Read(offset, found);
  EXPECT_TRUE(read.ok()) << read;
  return std::all_of(found.begin(), found.end(),
                     [value](std::byte b) { return b == static_cast<std::byte>(value); });
}
// Ends an exchange and waits for it.
inline absl::Status Complete(GroupComm& comm, GroupComm::Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(comm.End(deadline));
  return comm.Wait(deadline);
}

template <typename Bench>
class CommContract : public ::testing::Test {
 protected:
  Bench bench_;
};
TYPED_TEST_SUITE_P(CommContract);

constexpr uint64_t kSlice = 100'003;  // no multiple of anything

TYPED_TEST_P(CommContract, SlicesGoToTheirRanksAndNowhereElse) {
  this->bench_.Run({0, 1, 2}, [](const CommRank& self) {
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    const auto memory = self.memory(3 * kSlice);
    ASSERT_TRUE(comm->Begin().ok());
    if (self.rank == 1) {
      self.fill(*memory, 0, kSlice, 10);
      self.fill(*memory, 2 * kSlice, kSlice, 12);
      EXPECT_TRUE(comm->Send(*memory, 0, kSlice, 0).ok());
      EXPECT_TRUE(comm->Send(*memory, 2 * kSlice, kSlice, 2).ok());
    } else {
      EXPECT_TRUE(comm->Receive(*memory, kSlice, kSlice, 1).ok());
    }
    const absl::Status status = Complete(*comm, CommRank::Patiently());
    ASSERT_TRUE(status.ok()) << status;
    const int first[] = {0, 10, 0}, middle[] = {10, 0, 12}, last[] = {0, 12, 0};
    EXPECT_TRUE(AllAre(*memory, 0, kSlice, first[self.rank]));
    EXPECT_TRUE(AllAre(*memory, kSlice, kSlice, middle[self.rank]));
    EXPECT_TRUE(AllAre(*memory, 2 * kSlice, kSlice, last[self.rank]));
    EXPECT_TRUE(comm->Close(CommRank::Patiently()).ok());
  });
}

TYPED_TEST_P(CommContract, ABroadcastGivesEveryRankTheRootsBytes) {
  this->bench_.Run({0, 1, 2}, [](const CommRank& self) {
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    const auto memory = self.memory(2 * kSlice);
    if (self.rank == 2) self.fill(*memory, 7, kSlice, 9);
    ASSERT_TRUE(comm->Begin().ok());
    EXPECT_TRUE(comm->Broadcast(*memory, 7, kSlice, 2).ok());
    const absl::Status status = Complete(*comm, CommRank::Patiently());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(AllAre(*memory, 0, 7, 0) && AllAre(*memory, 7, kSlice, 9));
    EXPECT_TRUE(AllAre(*memory, 7 + kSlice, kSlice - 7, 0));
    EXPECT_TRUE(comm->Close(CommRank::Patiently()).ok());
  });
}

TYPED_TEST_P(CommContract, BytesGoBothWaysInOneExchangeInTheOrderInWhichTheyWereSent) {
  this->bench_.Run({0, 1}, [](const CommRank& self) {
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    const auto memory = self.memory(4 * kSlice);
    const uint32_t peer = 1 - self.rank;
    self.fill(*memory, 0, kSlice, self.rank == 0 ? 1 : 3);
    self.fill(*memory, kSlice, kSlice, self.rank == 0 ? 2 : 4);
    ASSERT_TRUE(comm->Begin().ok());
    for (uint64_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(comm->Send(*memory, i * kSlice, kSlice, peer).ok());
      EXPECT_TRUE(comm->Receive(*memory, (2 + i) * kSlice, kSlice, peer).ok());
    }
    const absl::Status status = Complete(*comm, CommRank::Patiently());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(AllAre(*memory, 2 * kSlice, kSlice, self.rank == 0 ? 3 : 1));
    EXPECT_TRUE(AllAre(*memory, 3 * kSlice, kSlice, self.rank == 0 ? 4 : 2));
    EXPECT_TRUE(comm->Close(CommRank::Patiently()).ok());
  });
}

TYPED_TEST_P(CommContract, OneWaitIsForAllExchangesBeforeIt) {
  this->bench_.Run({0, 1}, [](const CommRank& self) {
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    const auto memory = self.memory(2 * kSlice);
    if (self.rank == 0) self.fill(*memory, 0, 2 * kSlice, 6);
    for (uint64_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(comm->Begin().ok());
      EXPECT_TRUE((self.rank == 0 ? comm->Send(*memory, i * kSlice, kSlice, 1)
                                  : comm->Receive(*memory, i * kSlice, kSlice, 0))
                      .ok());
      ASSERT_TRUE(comm->End(CommRank::Patiently()).ok());
    }
    const absl::Status status = comm->Wait(CommRank::Patiently());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(AllAre(*memory, 0, 2 * kSlice, 6));
    EXPECT_TRUE(comm->Close(CommRank::Patiently()).ok());
  });
}

TYPED_TEST_P(CommContract, ADeadlineNamesWhomTheGroupKnowsByAnotherNumberAndTheErrorStays) {
  const Word over;  // keeps rank 1 alive until then, because others would see its end
  this->bench_.Run({4, 7}, [&over](const CommRank& self) {
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    if (self.rank == 1) return over.Await();
    const auto memory = self.memory(kSlice);
    ASSERT_TRUE(comm->Begin().ok());
    EXPECT_TRUE(comm->Receive(*memory, 0, kSlice, 1).ok());
    const absl::Status status = Complete(*comm, CommRank::In(std::chrono::milliseconds(200)));
    over.Say();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(ReasonOf(status), reason::kDeadline);
    EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("rank 7"));
    EXPECT_EQ(comm->Begin(), status);
    EXPECT_EQ(comm->Close(CommRank::Patiently()), status);
  });
}

TYPED_TEST_P(CommContract, AnInterruptionEndsTheWaitWithItsOwnError) {
  const Word over;
  this->bench_.Run({0, 1}, [&over](const CommRank& self) {
    const absl::Status why = MakeError(absl::StatusCode::kAborted, reason::kRankLost, "rank 1");
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    if (self.rank == 1) return over.Await();
    const auto memory = self.memory(kSlice);
    comm->Interrupt([&why] { return why; });
    ASSERT_TRUE(comm->Begin().ok());
    EXPECT_TRUE(comm->Receive(*memory, 0, kSlice, 1).ok());
    const absl::Status status = Complete(*comm, CommRank::Patiently());
    over.Say();
    EXPECT_EQ(status.code(), why.code()) << status;
    EXPECT_EQ(ReasonOf(status), reason::kRankLost);
    EXPECT_EQ(comm->Begin(), status);
  });
}

TYPED_TEST_P(CommContract, ClosingTwiceIsNoError) {
  this->bench_.Run({0, 1}, [](const CommRank& self) {
    EXPECT_FALSE(self.comms->version().empty());
    const auto comm = self.Join();
    ASSERT_NE(comm, nullptr);
    EXPECT_TRUE(comm->Close(CommRank::Patiently()).ok());
    EXPECT_TRUE(comm->Close(CommRank::Patiently()).ok());
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommContract, SlicesGoToTheirRanksAndNowhereElse,
                            ABroadcastGivesEveryRankTheRootsBytes,
                            BytesGoBothWaysInOneExchangeInTheOrderInWhichTheyWereSent,
                            OneWaitIsForAllExchangesBeforeIt,
                            ADeadlineNamesWhomTheGroupKnowsByAnotherNumberAndTheErrorStays,
                            AnInterruptionEndsTheWaitWithItsOwnError, ClosingTwiceIsNoError);

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_COMM_COMM_CONTRACT_H_

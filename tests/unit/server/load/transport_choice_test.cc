#include "server/load/transport_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using ::testing::HasSubstr;

constexpr char kNccl[] = "NCCL 2.30.7";

// Two readers of two ranks on two hosts, all of which can join a communicator.
TransportFacts Facts() {
  TransportFacts facts;
  facts.communicator = kNccl;
  facts.one_reader = false;
  facts.ranks = {{0, "a", kNccl, ""}, {1, "b", kNccl, ""}};
  return facts;
}

TEST(ChooseTransport, SeveralReadersOnSeveralHostsSendByTheCommunicatorThatAllHave) {
  const TransportChoice choice = ChooseTransport(Facts());
  EXPECT_EQ(choice.comm, CommChoice::kNccl);
  EXPECT_EQ(choice.no_comm, "");
  EXPECT_THAT(choice.remark, HasSubstr(kNccl));
}

TEST(ChooseTransport, SeveralReadersOnOneHostMapEachOthersMemory) {
  TransportFacts facts = Facts();
  facts.ranks[1].host = "a";
  EXPECT_EQ(ChooseTransport(facts).comm, CommChoice::kHost);
}

TEST(ChooseTransport, ARankWithoutThatCommunicatorMakesSeveralReadersSendInStreams) {
  TransportFacts facts = Facts();
  facts.ranks[1].communicator = "";
  facts.ranks[1].no_communicator = "no NCCL";
  EXPECT_EQ(ChooseTransport(facts).comm, CommChoice::kHost);
  EXPECT_THAT(ChooseTransport(facts).remark, HasSubstr("rank 1 has no NCCL, rank 0 NCCL 2.30.7"));
  facts.ranks[1].communicator = "NCCL 2.20.5";
  EXPECT_THAT(ChooseTransport(facts).remark, HasSubstr("rank 1 has NCCL 2.20.5"));
  facts.communicator = "";
  facts.no_communicator = "no driver";
  EXPECT_THAT(ChooseTransport(facts).remark, HasSubstr("rank 0 no driver"));
}

TEST(ChooseTransport, OneReaderFindsOutByItselfWhomItCanReach) {
  TransportFacts facts = Facts();
  facts.one_reader = true;
  EXPECT_EQ(ChooseTransport(facts).comm, CommChoice::kAuto);
}

TEST(ChooseTransport, NothingGoesByNcclBesideABusyGpuOrAfterItExchangedNothing) {
  for (const bool one_reader : {false, true}) {
    TransportFacts facts = Facts();
    facts.one_reader = one_reader;
    facts.busy_rank = 1;
    EXPECT_EQ(ChooseTransport(facts).comm, CommChoice::kHost);
    EXPECT_THAT(ChooseTransport(facts).no_comm, HasSubstr("a client holds a shard of rank 1"));
    facts.failed_before = true;
    EXPECT_EQ(ChooseTransport(facts).no_comm, "NCCL exchanged nothing before");
  }
}

TEST(ChooseTransport, WhatWasAskedForIsChosenWhateverElseIsKnown) {
  for (const CommChoice asked : {CommChoice::kHost, CommChoice::kNccl}) {
    TransportFacts facts = Facts();
    facts.asked = asked;
    facts.busy_rank = 1;
    facts.failed_before = true;
    EXPECT_EQ(ChooseTransport(facts).comm, asked);
    EXPECT_EQ(ChooseTransport(facts).no_comm, "");
  }
}

}  // namespace
}  // namespace ckptd

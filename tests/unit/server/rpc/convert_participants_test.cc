#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

using std::chrono::seconds;

absl::Status Mistake() {
  return MakeError(absl::StatusCode::kNotFound, reason::kTensorNotFound, "a mistake",
                   {{"tensor", "w"}});
}

TEST(ConvertParticipantsTest, HeartbeatsCarryParticipantsAndVerdictsWhole) {
  Participant one;
  one.id = "a";
  one.source = "/m";
  one.real_source = "/real/m";
  one.pid = 7;
  one.barrier = true;
  one.process_age = seconds(100);
  one.time_left = seconds(-1);
  one.age = seconds(9);
  one.ended_age = seconds(3);
  one.job = "E";
  one.guest = 1001;
  one.state = Participant::State::kFailed;
  one.failure = Mistake();
  HeartbeatCall call;
  call.participants = {one, one};
  call.participants[1].state = Participant::State::kPlaced;
  const HeartbeatCall back = FromProto(ToProto(call));
  ASSERT_EQ(back.participants.size(), 2u);
  const Participant& same = back.participants[0];
  EXPECT_EQ(same.id + same.source + same.real_source + same.job, "a/m/real/mE");
  EXPECT_EQ(same.guest, std::optional<uid_t>(1001));
  EXPECT_TRUE(same.age == seconds(9) && same.ended_age == seconds(3));
  EXPECT_TRUE(same.pid == 7 && same.barrier && same.process_age == seconds(100));
  EXPECT_EQ(same.time_left, seconds(0)) << "time is up";
  EXPECT_EQ(same.failure, Mistake());
  EXPECT_EQ(back.participants[1].state, Participant::State::kPlaced);
  HeartbeatReply reply;
  reply.verdicts = {{"a", Mistake()}, {"b", absl::OkStatus()}};
  const HeartbeatReply answer = FromProto(ToProto(reply));
  ASSERT_EQ(answer.verdicts.size(), 2u);
  EXPECT_EQ(answer.verdicts[0].status, Mistake());
  EXPECT_EQ(answer.verdicts[1].id, "b");
  EXPECT_TRUE(answer.verdicts[1].status.ok());
}

TEST(ConvertParticipantsTest, WhatAClientSaysIsBoundedBeforeItTravels) {
  v1::JoinLoadRequest request;
  request.set_source("/" + std::string(100000, 'a'));
  request.set_job_key(std::string(100000, 'a'));
  request.mutable_process_age()->set_seconds(-5);
  request.mutable_timeout()->set_seconds(1'000'000'000);
  const Participant participant = FromProto(request);
  EXPECT_LE(participant.source.size(), 2048u);
  EXPECT_EQ(participant.job.size(), 64u);
  EXPECT_EQ(participant.process_age, seconds(0));
  EXPECT_EQ(participant.time_left, std::chrono::hours(24));
  EXPECT_EQ(FromProto(v1::JoinLoadRequest()).time_left, std::chrono::minutes(10));
  v1::LeaveLoadRequest leave;
  leave.mutable_failure()->set_code(99);
  leave.mutable_failure()->set_message(std::string(100000, 'a'));
  for (int i = 0; i < 1000; ++i) {
    (*leave.mutable_facts())[std::to_string(i)] = std::string(100000, 'a');
  }
  const absl::Status failure = FailureFrom(leave.failure(), leave.facts());
  EXPECT_EQ(failure.code(), absl::StatusCode::kInternal);
  EXPECT_LE(MessageOf(failure).size(), 2048u);
  EXPECT_LE(FactsOf(failure).size(), 16u);
  v1::HeartbeatRequest heartbeat;
  for (int i = 0; i < 1000; ++i) heartbeat.add_participants();
  EXPECT_EQ(FromProto(heartbeat).participants.size(), kMostParticipants);
}

}  // namespace
}  // namespace ckptd

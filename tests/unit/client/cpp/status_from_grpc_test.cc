#include "client/cpp/status_from_grpc.h"

#include <gtest/gtest.h>

#include "ckptd/v1/error.pb.h"
#include "client/cpp/types.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

absl::Status Convert(const grpc::Status& status) {
  return StatusFromGrpc(status, "loading /m", {"unix:/d/rank-0.sock", "/d/rank-0.sock", "a test"});
}

std::string Details(const std::string& type_url, const std::string& reason) {
  v1::ErrorInfo info;
  info.set_reason(reason);
  v1::ErrorStatus status;
  auto& any = *status.add_details();
  any.set_type_url(type_url);
  any.set_value(info.SerializeAsString());
  return status.SerializeAsString();
}

constexpr char kUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";

TEST(StatusFromGrpc, ReadsTheReason) {
  const grpc::Status status(grpc::StatusCode::FAILED_PRECONDITION, "no", Details(kUrl, "TAKEN"));
  EXPECT_THAT(Convert(status), FailsWith(absl::StatusCode::kFailedPrecondition, reason::kTaken));
}

TEST(StatusFromGrpc, CallsATransportErrorAnUnreachableDaemon) {
  const absl::Status status = Convert({grpc::StatusCode::UNAVAILABLE, "Socket closed"});
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable));
  EXPECT_THAT(status, Says("loading /m"));
}

TEST(StatusFromGrpc, NamesADeadline) {
  EXPECT_THAT(Convert({grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"}),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
}

TEST(StatusFromGrpc, HintsAtTheOtherSocketWhenACallIsUnknown) {
  EXPECT_THAT(Convert({grpc::StatusCode::UNIMPLEMENTED, ""}), Says("admin.sock"));
}

TEST(StatusFromGrpc, SurvivesDetailsOfAnotherKind) {
  const grpc::Status other(grpc::StatusCode::INTERNAL, "x", Details("type.example/Other", "A_B"));
  EXPECT_THAT(Convert(other), FailsWith(absl::StatusCode::kInternal, "INTERNAL"));
  const grpc::Status garbage(grpc::StatusCode::INTERNAL, "x", "\xff\xff garbage");
  EXPECT_THAT(Convert(garbage), FailsWith(absl::StatusCode::kInternal, "INTERNAL"));
}

TEST(StatusFromGrpc, DoesNotTrustAReasonThatIsNone) {
  const grpc::Status status(grpc::StatusCode::INTERNAL, "x", Details(kUrl, "oh\x1b[2J no"));
  EXPECT_THAT(Convert(status), FailsWith(absl::StatusCode::kInternal, "INTERNAL"));
}

TEST(StatusFromGrpc, NeverMakesAnErrorOutOfRangeOk) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "gRPC's own header loads such a code as an enum, which UBSan ends";
#endif
  int code = 99;  // a variable, because the compiler refuses this constant
  EXPECT_EQ(Convert({static_cast<grpc::StatusCode>(code), "x"}).code(), absl::StatusCode::kUnknown);
}

TEST(StatusFromGrpc, GivesAReasonWhereTheServerHasNoThreadForACall) {
  const absl::Status busy = Convert({grpc::StatusCode::RESOURCE_EXHAUSTED, "Server Threadpool Exhausted"});
  EXPECT_THAT(busy, FailsWith(absl::StatusCode::kResourceExhausted, reason::kTooManyWaiting));
  EXPECT_THAT(busy, Says("ask again later"));
  const absl::Status other = Convert({grpc::StatusCode::RESOURCE_EXHAUSTED, "message larger than max"});
  EXPECT_EQ(ReasonOf(other), "RESOURCE_EXHAUSTED");
}

TEST(CheckActive, SaysWhyALoadFailed) {
  v1::Checkpoint checkpoint;
  checkpoint.set_state(v1::Checkpoint::STATE_FAILED);
  v1::Failure& failure = *checkpoint.mutable_failure();
  failure.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  failure.set_message("no room");
  failure.set_reason("NO_MEMORY");
  failure.set_rank(3);
  const absl::Status status = CheckActive(checkpoint);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(FactsOf(status).at("rank"), "3");
  failure.set_code(0);  // which would be no failure
  EXPECT_EQ(CheckActive(checkpoint).code(), absl::StatusCode::kUnknown);
}

TEST(CheckActive, TellsALoadingOneFromATakenOne) {
  v1::Checkpoint checkpoint;
  checkpoint.set_state(v1::Checkpoint::STATE_LOADING);
  EXPECT_EQ(ReasonOf(CheckActive(checkpoint)), reason::kNotActive);
  checkpoint.set_state(v1::Checkpoint::STATE_TAKEN);
  EXPECT_EQ(ReasonOf(CheckActive(checkpoint)), reason::kTaken);
}

}  // namespace
}  // namespace ckptd

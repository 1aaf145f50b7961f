#include "server/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

TEST(GrpcStatus, OkStaysOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_OK(FromGrpc(grpc::Status::OK));
}

TEST(GrpcStatus, KeepsCodeSentenceReasonAndFacts) {
  const absl::Status status = MakeError(absl::StatusCode::kNotFound, reason::kTensorNotFound,
                                        "planning rank 2: no tensor w",
                                        {{"rank", "2"}, {"tensor", "w"}});
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
}

TEST(GrpcStatus, AStatusOfGrpcItselfKeepsCodeAndMessage) {
  const absl::Status status = FromGrpc({grpc::StatusCode::UNAVAILABLE, "no connection"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(MessageOf(status), "no connection");
}

TEST(GrpcStatus, DetailsThatAreGarbageAreIgnored) {
  const absl::Status status =
      FromGrpc({grpc::StatusCode::INTERNAL, "boom", std::string("\xff\xfe\x01garbage", 10)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(MessageOf(status), "boom");
}

TEST(GrpcStatus, LongSentencesAreCutToWhatMetadataMayHold) {
  const absl::Status status = MakeError(absl::StatusCode::kInternal, reason::kCoverage,
                                        std::string(100'000, 'x'),
                                        {{"file", std::string(100'000, 'y')}});
  const grpc::Status sent = ToGrpc(status);
  EXPECT_LT(sent.error_message().size() + sent.error_details().size(), size_t{8} << 10);
  EXPECT_EQ(ReasonOf(FromGrpc(sent)), reason::kCoverage);
}

TEST(GrpcStatus, BytesThatAreNoTextDoNotCostTheReason) {
  const absl::Status status = MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                                        "opening /m/\xff.safetensors", {{"file", "/m/\xff"}});
  const absl::Status back = FromGrpc(ToGrpc(status));
  EXPECT_THAT(back, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_EQ(MessageOf(back), "opening /m/?.safetensors");
  EXPECT_EQ(FactsOf(back).at("file"), "file:///m/%FF") << "which can be opened";
}

TEST(GrpcStatus, ACutInTheMiddleOfACharacterDoesNotCostTheReason) {
  std::string sentence = "x";
  while (sentence.size() < 5000) sentence += "\u00e9";
  const absl::Status status =
      MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound, sentence);
  EXPECT_EQ(ReasonOf(FromGrpc(ToGrpc(status))), reason::kSourceNotFound);
}

}  // namespace
}  // namespace ckptd

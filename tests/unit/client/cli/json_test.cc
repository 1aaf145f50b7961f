#include "client/cli/json.h"

#include <gtest/gtest.h>

#include <sstream>

#include "ckptd/v1/admin_service.pb.h"
#include "client/cli/output.pb.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"

namespace ckptd::cli {
namespace {

std::string Printed(const google::protobuf::Message& message) {
  std::ostringstream out;
  EXPECT_OK(PrintJson(message, out));
  return out.str();
}

TEST(Json, IsWhatProtobufPrintsWithTheNamesOfTheApi) {
  v1::Lease lease;
  lease.set_name("checkpoints/a/leases/1");
  lease.set_mode(v1::ATTACH_MODE_PRIVATE);
  lease.mutable_create_time()->set_seconds(1'700'000'000);
  EXPECT_EQ(Printed(lease),
            "{\n \"name\": \"checkpoints/a/leases/1\",\n \"checkpoint\": \"\",\n"
            " \"mode\": \"ATTACH_MODE_PRIVATE\",\n \"pid\": 0,\n \"uid\": 0,\n"
            " \"connected\": false,\n \"create_time\": \"2023-11-14T22:13:20Z\"\n}\n");
}

TEST(Json, KeepsIntegersExactAndLeavesOutWhatIsUnset) {
  v1::Checkpoint checkpoint;
  checkpoint.set_slab_bytes(UINT64_MAX);
  const std::string json = Printed(checkpoint);
  EXPECT_NE(json.find("\"slab_bytes\": \"18446744073709551615\""), json.npos);
  EXPECT_EQ(json.find("failure"), json.npos);
}

TEST(Json, GivesEmptyListsAsLists) {
  EXPECT_EQ(Printed(v1::ListLeasesResponse()), "{\n \"leases\": []\n}\n");
}

TEST(Json, IsAsciiWhateverNamesHold) {
  v1::Checkpoint checkpoint;
  checkpoint.set_source("/m\x1b\x7f\xc2\x9b\xe2\x81\xa6\xf0\x9f\x98\x80");
  const std::string json = Printed(checkpoint);
  EXPECT_NE(json.find("\"/m\\u001b\\u007f\\u009b\\u2066\\ud83d\\ude00\""), json.npos) << json;
}

TEST(Json, OfATimeThatItCannotExpressIsAnErrorAndNothingIsPrinted) {
  v1::Checkpoint checkpoint;
  checkpoint.mutable_create_time()->set_seconds(INT64_MAX);
  std::ostringstream out;
  EXPECT_THAT(PrintJson(checkpoint, out),
              FailsWith(absl::StatusCode::kDataLoss, reason::kInvalidReply));
  EXPECT_EQ(out.str(), "");
}

TEST(Json, HasTheNumberOfAValueThatThisClientDoesNotKnow) {
  v1::Checkpoint checkpoint;
  checkpoint.set_state(static_cast<v1::Checkpoint::State>(77));
  EXPECT_NE(Printed(checkpoint).find("\"state\": 77"), std::string::npos);
}

TEST(Json, HasErrorsOnOneLine) {
  EXPECT_EQ(ErrorJson(MakeError(absl::StatusCode::kNotFound, reason::kCheckpointNotFound, "a\nb",
                                {{"k", "v\xff"}})),
            R"({"error":{"code":"NOT_FOUND","reason":"CHECKPOINT_NOT_FOUND","message":"a?b",)"
            R"("facts":{"k":"v\\xff"}}})");
}

TEST(Json, NamesTheFileOfAnErrorSoThatItCanBeOpened) {
  const std::string json = ErrorJson(MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                                               "x", {{"file", "/m\xff"}}));
  EXPECT_NE(json.find("\"file\":\"file:///m%FF\""), json.npos) << json;
}

TEST(Json, HasTextThatIsNotUtf8Escaped) {
  EXPECT_EQ(MessageText("a\xc3\xa9"), "a\xc3\xa9");
  EXPECT_EQ(MessageText("a\xff"), "a\\xff");
}

}  // namespace
}  // namespace ckptd::cli

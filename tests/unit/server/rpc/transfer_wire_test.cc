#include "server/rpc/transfer_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

Frame FrameOf(const std::string& payload) {
  Frame frame;
  frame.header = {3, 1000, 1000 + payload.size(), 0xfeed};
  std::shared_ptr<std::byte[]> data(new std::byte[payload.size()]);
  std::memcpy(data.get(), payload.data(), payload.size());
  frame.data = data;
  frame.bytes = payload.size();
  return frame;
}

// The bytes on the wire, and below, the same in slices of `step`.
std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}
grpc::ByteBuffer InSlices(const std::string& bytes, size_t step) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += step) slices.emplace_back(bytes.substr(at, step));
  return {slices.data(), slices.size()};
}
std::string Text(const std::vector<std::span<const std::byte>>& pieces) {
  std::string text;
  for (const auto& piece : pieces) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  return text;
}

TEST(TransferWire, AFrameIsThatMessageForAnyProtobufReader) {
  v1::SendRequest request;
  ASSERT_TRUE(request.ParseFromString(Bytes(ToWire(FrameOf("payload")))));
  EXPECT_EQ(request.data(), "payload");
  EXPECT_EQ(request.frame().file(), 3u);
  EXPECT_EQ(request.frame().end(), 1007u);
  EXPECT_EQ(request.frame().checksum(), 0xfeedu);
}

TEST(TransferWire, AMessageOfAnyProtobufWriterIsAFrame) {
  v1::SendRequest request;
  request.mutable_frame()->set_begin(7);
  request.set_data(std::string(100'000, 'x'));
  for (const size_t step : {1000u, 1u, 200'000u}) {
    ASSERT_OK_AND_ASSIGN(const SendMessage message,
                         FromWire(InSlices(request.SerializeAsString(), step)));
    EXPECT_EQ(FromProto(message.fields.frame()).begin, 7u);
    EXPECT_EQ(Text(message.data), request.data());
  }
}

TEST(TransferWire, ThePayloadLivesUntilGrpcLetsGoOfIt) {
  std::weak_ptr<const std::byte[]> payload;
  {
    Frame frame = FrameOf("payload");
    payload = frame.data;
    const grpc::ByteBuffer buffer = ToWire(frame);
    frame.data.reset();
    EXPECT_FALSE(payload.expired());
  }
  EXPECT_TRUE(payload.expired());
}

TEST(TransferWire, EveryMessageThatIsCutShortIsRefusedOrHasLess) {
  const std::string whole = Bytes(ToWire(FrameOf("payload")));
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto message = FromWire(InSlices(whole.substr(0, n), 3));
    EXPECT_TRUE(!message.ok() || !message->has_data) << n;
  }
}

TEST(TransferWire, APayloadThatIsNotTheLastFieldIsRefused) {
  EXPECT_THAT(FromWire(InSlices(Bytes(ToWire(FrameOf("payload"))) + "\x0a", 5)),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kTransferInvalid));
}

TEST(TransferWire, AFieldThatClaimsMoreThanThereIsIsRefused) {
  EXPECT_THAT(FromWire(InSlices("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 1)),
              Says("it ends early"));
}

TEST(TransferWire, ANumberWithoutAnEndIsRefused) {
  EXPECT_THAT(FromWire(InSlices(std::string(20, '\xff'), 4)), Says("it ends early"));
}

TEST(TransferWire, AFieldOfAnotherKindIsRefused) {
  EXPECT_THAT(FromWire(InSlices(std::string("\x08\x00", 2), 4)), Says("unknown field"));
}

}  // namespace
}  // namespace ckptd

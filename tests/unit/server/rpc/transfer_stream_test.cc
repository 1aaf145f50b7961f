// Sinks with a service that does what the test wants.
#include "server/rpc/transfer_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "ckptd/v1/transfer_service.grpc.pb.h"
#include "common/base/reasons.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/transfer_sink.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using Stream = grpc::ServerReaderWriter<v1::SendResponse, v1::SendRequest>;

class ScriptedService final : public v1::TransferService::Service {
 public:
  std::function<grpc::Status(Stream&)> script;

  grpc::Status Send(grpc::ServerContext* context, Stream* stream) override {
    ++streams;
    context_ = context;
    return script(*stream);
  }
  // Waits until the other side cancels.
  void WaitForCancel() {
    while (!context_->IsCancelled()) std::this_thread::yield();
  }

  // Waits until `released`, or until the other side cancels.
  void WaitForRelease() {
    while (!released && !context_->IsCancelled()) std::this_thread::yield();
  }

  std::atomic<int> streams = 0;
  std::atomic<bool> released = false;

 private:
  grpc::ServerContext* context_ = nullptr;
};

// Receives everything. `spoken` gets each message.
grpc::Status TakeAll(Stream& stream, const std::function<void(const v1::SendRequest&)>& spoken) {
  v1::SendRequest request;
  uint64_t frames = 0;
  while (stream.Read(&request)) {
    spoken(request);
    if (!request.has_frame()) continue;
    v1::SendResponse response;
    response.set_frames(++frames);
    stream.Write(response);
  }
  return grpc::Status::OK;
}

class TransferStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = GrpcServer::Start({"127.0.0.1:0", kMaxPeerMessage}, {&service_}).value();
    to_.rank = 3;
    to_.address = "127.0.0.1:" + std::to_string(server_->port());
    frame_.header = {1, 2, 12, 4};
    frame_.data = std::shared_ptr<std::byte[]>(new std::byte[10]());
    frame_.bytes = 10;
  }

  std::unique_ptr<TransferStream> Open() {
    return std::make_unique<TransferStream>(PeerChannel(to_.address, {}), to_, call_, step_, moved_);
  }

  ScriptedService service_;
  std::unique_ptr<GrpcServer> server_;
  MemberIdentity to_;
  SinkCall call_{5, "checkpoints/a", "secret", 2, Soon()};
  Frame frame_;
  std::chrono::milliseconds step_ = std::chrono::minutes(1);
  LastMove moved_;
};

TEST_F(TransferStreamTest, IntroducesItselfThenSendsFrames) {
  std::vector<v1::SendRequest> seen;
  service_.script = [&](Stream& stream) {
    return TakeAll(stream, [&](const v1::SendRequest& request) { seen.push_back(request); });
  };
  const auto stream = Open();
  ASSERT_OK(stream->Send(frame_));
  ASSERT_OK(stream->Send(frame_));
  ASSERT_OK(stream->Finish());
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].start().epoch(), 5u);
  EXPECT_EQ(seen[0].start().secret(), "secret");
  EXPECT_EQ(seen[0].start().name(), "checkpoints/a");
  EXPECT_EQ(seen[0].start().rank(), 2);
  EXPECT_EQ(seen[2].frame().begin(), 2u);
  EXPECT_EQ(seen[2].data().size(), 10u);
}

TEST_F(TransferStreamTest, ConnectsOnlyWhenThereIsSomethingToSend) {
  ASSERT_OK(Open()->Finish());
  EXPECT_EQ(service_.streams, 0);
}

TEST_F(TransferStreamTest, ARankThatTakesNothingIsLostAfterAStep) {
  service_.script = [this](Stream&) {
    service_.WaitForCancel();
    return grpc::Status::CANCELLED;
  };
  step_ = std::chrono::milliseconds(300);
  const auto stream = Open();
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = stream->Send(frame_);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_THAT(status, Says("rank 3"));
  EXPECT_THAT(stream->Send(frame_), Says("nothing has moved"));
}

TEST_F(TransferStreamTest, ARankThatNeverAcknowledgesTheLastFrameIsLostAfterAStep) {
  service_.script = [this](Stream& stream) {
    v1::SendRequest request;
    stream.Read(&request);
    stream.Read(&request);
    service_.WaitForCancel();
    return grpc::Status::CANCELLED;
  };
  step_ = std::chrono::seconds(1);  // in which it connects
  const auto stream = Open();
  ASSERT_OK(stream->Send(frame_));
  EXPECT_THAT(stream->Finish(), FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
}

TEST_F(TransferStreamTest, ARankIsNotLostWhileOtherStreamsToItMove) {
  service_.script = [this](Stream& stream) {
    service_.WaitForRelease();
    return TakeAll(stream, [](const v1::SendRequest&) {});
  };
  step_ = std::chrono::seconds(1);
  std::jthread others([&] {
    const auto end = LastMove::Clock::now() + step_ * 3 / 2;
    while (LastMove::Clock::now() < end) {
      moved_.Note();
      std::this_thread::yield();
    }
    service_.released = true;
  });
  const auto stream = Open();
  ASSERT_OK(stream->Send(frame_));
  EXPECT_OK(stream->Finish());
}

TEST_F(TransferStreamTest, WhatTheRankAnswersIsPassedOn) {
  service_.script = [](Stream&) {
    return ToGrpc(MakeError(absl::StatusCode::kDataLoss, reason::kTransferCorrupt,
                            "a checksum differs", {{"file", "a.safetensors"}}));
  };
  const auto stream = Open();
  absl::Status status = stream->Send(frame_);
  if (status.ok()) status = stream->Finish();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, reason::kTransferCorrupt));
  EXPECT_EQ(FactsOf(status).at("file"), "a.safetensors");
}

TEST_F(TransferStreamTest, AnEndBeforeEverythingIsPlacedIsAnError) {
  service_.script = [](Stream&) { return grpc::Status::OK; };
  const auto stream = Open();
  absl::Status status = stream->Send(frame_);
  if (status.ok()) status = stream->Finish();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_THAT(status, Says("ended the stream early"));
}

TEST_F(TransferStreamTest, AcknowledgementsOfFramesThatWereNeverSentCountForNothing) {
  service_.script = [this](Stream& stream) {
    v1::SendResponse response;
    response.set_frames(1000);
    stream.Write(response);
    service_.WaitForCancel();
    return grpc::Status::CANCELLED;
  };
  step_ = std::chrono::seconds(1);  // in which it connects
  const auto stream = Open();
  ASSERT_OK(stream->Send(frame_));
  EXPECT_THAT(stream->Finish(), FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
}

TEST_F(TransferStreamTest, ARankThatIsNotThereIsLost) {
  server_.reset();
  step_ = std::chrono::milliseconds(300);
  const auto stream = Open();
  absl::Status status = stream->Send(frame_);
  if (status.ok()) status = stream->Finish();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
}

TEST_F(TransferStreamTest, ASinkSpreadsFramesOverItsStreams) {
  std::atomic<int> frames = 0;
  service_.script = [&](Stream& stream) {
    return TakeAll(stream, [&](const v1::SendRequest& request) { frames += request.has_frame(); });
  };
  GrpcTransferSink sink(to_, {}, call_, {3, step_});
  for (int i = 0; i < 9; ++i) ASSERT_OK(sink.Send(frame_));
  ASSERT_OK(sink.Finish());
  EXPECT_EQ(frames, 9);
  EXPECT_EQ(service_.streams, 3);
}

}  // namespace
}  // namespace ckptd

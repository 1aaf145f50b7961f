#include "server/rpc/transfer_stream.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"
#include "server/rpc/peer_channel.h"
#include "server/rpc/transfer_wire.h"

namespace ckptd {
namespace {

// Unacknowledged frames per stream: enough that the receiver never waits for us, few enough that
// a slow link shows progress within a step.
constexpr uint64_t kWindow = 4;

}  // namespace

TransferStream::TransferStream(std::shared_ptr<grpc::Channel> channel, MemberIdentity to,
                               SinkCall call, std::chrono::nanoseconds step, LastMove& moved)
    : to_(std::move(to)),
      call_(std::move(call)),
      step_(std::chrono::duration_cast<LastMove::Clock::duration>(step)),
      moved_(moved),
      stub_(std::move(channel)) {
  context_.set_deadline(WallDeadline(call_.deadline));
  // A lossy link resets new connections, so gRPC tries again, for as long as a step lasts.
  context_.set_wait_for_ready(true);
}

TransferStream::~TransferStream() {
  context_.TryCancel();
  events_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (events_.Next(&tag, &ok)) {
  }
}

absl::Status TransferStream::Send(const Frame& frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return SendLocked(frame);
}

std::optional<absl::Status> TransferStream::TrySend(const Frame& frame) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  return SendLocked(frame);
}

absl::Status TransferStream::SendLocked(const Frame& frame) {
  CKPTD_RETURN_IF_ERROR(error_);
  if (!started_) Start();
  CKPTD_RETURN_IF_ERROR(WaitFor([this] { return !writing_ && sent_ - placed_ < kWindow; }));
  ++sent_;
  Write(ToWire(frame));
  return absl::OkStatus();
}

void TransferStream::Start() {
  started_ = true;
  writing_ = true;  // until the call has begun
  call_stream_ = stub_.PrepareCall(&context_, kSendMethod, &events_);
  call_stream_->StartCall(TagOf(kStarted));
}

void TransferStream::Write(const grpc::ByteBuffer& message) {
  writing_ = true;
  call_stream_->Write(message, TagOf(kWritten));
}

absl::Status TransferStream::WaitFor(absl::FunctionRef<bool()> done) {
  auto since = LastMove::Clock::now();
  while (!done()) {
    if (broken_) return error_ = Fail();
    void* tag = nullptr;
    bool ok = false;
    const auto waited_for = std::max(since, moved_.at());
    if (events_.AsyncNext(&tag, &ok, waited_for + step_) == grpc::CompletionQueue::GOT_EVENT) {
      moved_.Note();
      since = moved_.at();
      Handle(static_cast<Event>(reinterpret_cast<intptr_t>(tag)), ok);
    } else if (moved_.at() <= waited_for) {
      context_.TryCancel();
      return error_ = Stalled();
    }
  }
  return absl::OkStatus();
}

void TransferStream::Handle(Event event, bool ok) {
  if (event == kEnded) {
    ended_ = true;
    return;
  }
  if (!ok && !closing_) broken_ = true;
  if (event == kStarted && ok) {
    v1::SendRequest request;
    v1::TransferStart& start = *request.mutable_start();
    start.set_epoch(call_.epoch);
    start.set_name(call_.name);
    start.set_secret(call_.secret);
    start.set_rank(static_cast<int32_t>(call_.from_rank));
    Write(ToWire(request));
    call_stream_->Read(&answer_, TagOf(kAnswered));
  } else if (event == kWritten) {
    writing_ = false;
  } else if (event == kAnswered && ok) {
    v1::SendResponse response;
    grpc::ProtoBufferReader reader(&answer_);
    // A receiver cannot have placed more than was sent, so such an answer is ignored.
    if (response.ParseFromZeroCopyStream(&reader) && response.frames() <= sent_) {
      placed_ = std::max(placed_, response.frames());
    }
    call_stream_->Read(&answer_, TagOf(kAnswered));
  }
}

absl::Status TransferStream::Fail() {
  call_stream_->Finish(&ended_with_, TagOf(kEnded));
  const auto until = std::chrono::system_clock::now() + timing::kStreamReason;
  while (!ended_) {
    void* tag = nullptr;
    bool ok = false;
    if (events_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) return Stalled();
    ended_ = static_cast<Event>(reinterpret_cast<intptr_t>(tag)) == kEnded;
  }
  if (ended_with_.ok()) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost,
                     fmt::format("sending {} to rank {}: it ended the stream early; look at its "
                                 "log, then load again",
                                 call_.name, to_.rank),
                     {{"rank", std::to_string(to_.rank)}});
  }
  return ExplainPeer(ended_with_, to_.rank, "sending " + call_.name);
}

absl::Status TransferStream::Stalled() const {
  return MakeError(
      absl::StatusCode::kUnavailable, reason::kRankLost,
      fmt::format("sending {} to rank {} at {}: nothing has moved for {:.0f} s; look at that host "
                  "and the network between, then load again",
                  call_.name, to_.rank, to_.address, std::chrono::duration<double>(step_).count()),
      {{"rank", std::to_string(to_.rank)}});
}

absl::Status TransferStream::Finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  CKPTD_RETURN_IF_ERROR(error_);
  if (!started_) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(WaitFor([this] { return !writing_ && sent_ == placed_; }));
  // All frames are placed. However the connection ends now, the status decides.
  closing_ = true;
  broken_ = false;
  writing_ = true;
  call_stream_->WritesDone(TagOf(kWritten));
  CKPTD_RETURN_IF_ERROR(WaitFor([this] { return !writing_; }));
  call_stream_->Finish(&ended_with_, TagOf(kEnded));
  CKPTD_RETURN_IF_ERROR(WaitFor([this] { return ended_; }));
  if (ended_with_.ok()) return absl::OkStatus();
  return error_ = ExplainPeer(ended_with_, to_.rank, "sending " + call_.name);
}

}  // namespace ckptd

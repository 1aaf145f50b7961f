#include "server/rpc/transfer_service.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/transfer_wire.h"

namespace ckptd {
namespace {

// One stream. gRPC's threads place frames as they arrive, and a frame may overtake another.
// Deletes itself when gRPC has finished with it.
class SendReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit SendReactor(Node* node) : node_(node) { StartRead(&next_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      MutexLock lock(mutex_);
      read_closed_ = true;
      FinishIfDone();
      return;
    }
    grpc::ByteBuffer message;
    message.Swap(&next_);
    const bool first = incoming_ == nullptr;
    absl::Status status;
    if (first) {
      status = Begin(message);
      if (status.ok()) StartRead(&next_);
    } else {
      {
        MutexLock lock(mutex_);
        ++placing_;
      }
      StartRead(&next_);
      status = Place(message);
    }
    MutexLock lock(mutex_);
    if (!first) --placing_;
    if (!status.ok()) {
      Fail(status);
    } else if (!first) {
      ++placed_;
      Acknowledge();
    }
    FinishIfDone();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok) {
      Acknowledge();
    } else {
      gone_ = true;
    }
    FinishIfDone();
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Begin(const grpc::ByteBuffer& message) {
    if (node_ == nullptr) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                       "sending to a daemon that is still starting; load again");
    }
    CKPTD_ASSIGN_OR_RETURN(const SendMessage parsed, FromWire(message));
    const v1::TransferStart& start = parsed.fields.start();
    SinkCall call;
    call.epoch = start.epoch();
    call.name = start.name();
    call.secret = start.secret();
    call.from_rank = static_cast<uint32_t>(start.rank());
    CKPTD_ASSIGN_OR_RETURN(incoming_, node_->Receive(call));
    return absl::OkStatus();
  }

  absl::Status Place(const grpc::ByteBuffer& message) {
    CKPTD_ASSIGN_OR_RETURN(const SendMessage parsed, FromWire(message));
    return incoming_->Take(FromProto(parsed.fields.frame()), parsed.data);
  }

  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!error_.ok()) return;
    error_ = status;
    Log(LogLevel::kWarn, "{}", MessageOf(status));
  }

  void Acknowledge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || acknowledged_ == placed_) return;
    acknowledged_ = placed_;
    v1::SendResponse response;
    response.set_frames(acknowledged_);
    answer_ = ToWire(response);
    writing_ = true;
    StartWrite(&answer_);
  }

  void FinishIfDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_ || placing_ > 0) return;
    const bool done = read_closed_ && !writing_ && acknowledged_ == placed_;
    if (error_.ok() && !gone_ && !done) return;
    finished_ = true;
    Finish(ToGrpc(error_));
  }

  Node* const node_;
  std::shared_ptr<PreparedLoad> incoming_;  // set before the second read starts
  grpc::ByteBuffer next_;
  Mutex mutex_;
  grpc::ByteBuffer answer_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  uint64_t placed_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t placing_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // the caller has gone
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* TransferServiceImpl::Send(
    grpc::CallbackServerContext*) {
  return new SendReactor(node_.load());
}

}  // namespace ckptd

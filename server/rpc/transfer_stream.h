// One stream of frames to one rank. Every wait ends after one step in which nothing moved to that
// rank, on this stream or on one beside it.
#ifndef CKPTD_SERVER_RPC_TRANSFER_STREAM_H_
#define CKPTD_SERVER_RPC_TRANSFER_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/protocol/links.h"
#include "server/transfer/frames.h"

namespace ckptd {

// When something last moved to a rank. Its streams share one: a connection that a crowded link
// starves is slow, and its rank is not lost while the others carry on. Thread-safe.
class LastMove {
 public:
  using Clock = std::chrono::system_clock;  // that of gRPC's deadlines
  void Note() { at_.store(Clock::now(), std::memory_order_relaxed); }
  Clock::time_point at() const { return at_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Clock::time_point> at_ = Clock::time_point();
};

// TransferSink's implementation owns it. Thread-safe: one caller at a time uses the stream.
class TransferStream {
 public:
  // Connects with the first frame. `moved` outlives it.
  TransferStream(std::shared_ptr<grpc::Channel> channel, MemberIdentity to, SinkCall call,
                 std::chrono::nanoseconds step, LastMove& moved);
  ~TransferStream();
  TransferStream(const TransferStream&) = delete;
  TransferStream& operator=(const TransferStream&) = delete;

  // As TransferSink::Send. An error is final.
  absl::Status Send(const Frame& frame);
  // Nullopt if another caller uses the stream.
  std::optional<absl::Status> TrySend(const Frame& frame);
  // Waits for every acknowledgement, and for the receiver to end the stream.
  absl::Status Finish();

 private:
  enum Event : intptr_t { kStarted = 1, kWritten, kAnswered, kEnded };

  absl::Status SendLocked(const Frame& frame);
  void Start();
  void Write(const grpc::ByteBuffer& message);
  // Handles events until `done` holds or the stream has failed.
  absl::Status WaitFor(absl::FunctionRef<bool()> done);
  void Handle(Event event, bool ok);
  // The call has ended, or must end. Returns the reason.
  absl::Status Fail();
  absl::Status Stalled() const;
  static void* TagOf(Event event) { return reinterpret_cast<void*>(event); }

  const MemberIdentity to_;
  const SinkCall call_;
  const LastMove::Clock::duration step_;
  LastMove& moved_;
  std::mutex mutex_;  // guards all members below
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue events_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_stream_;
  grpc::ByteBuffer answer_;
  grpc::Status ended_with_;
  bool started_ = false;
  bool writing_ = false;
  bool broken_ = false;  // the other side ended it, or the connection is lost
  bool closing_ = false;
  bool ended_ = false;  // ended_with_ is set
  uint64_t sent_ = 0;
  uint64_t placed_ = 0;  // according to the receiver
  absl::Status error_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_TRANSFER_STREAM_H_

// Work that was handed to the device and is not done yet.
#ifndef CKPTD_TESTS_FAKES_CUDA_STREAMS_H_
#define CKPTD_TESTS_FAKES_CUDA_STREAMS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/mutex.h"
#include "tests/fakes/cuda/driver_api.h"

namespace ckptd::fake_cuda {

struct Context;
struct Stream;
using StreamPtr = std::shared_ptr<Stream>;
using Clock = std::chrono::steady_clock;

// A place in a stream: everything up to and with piece `number`.
struct Point {
  StreamPtr stream;
  std::uint64_t number = 0;
};

struct Range {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

struct Work {
  // Looks at the tables and answers what went wrong; called with the lock.
  std::function<CUresult()> check;
  // Moves the bytes; called without the lock.
  std::function<void()> run;
  // Instead: begins what others do and end by EndOutside, or, with `lost`, is told that nobody
  // shall. Called without the lock; must not wait.
  std::function<void(bool lost)> start;
  std::vector<Range> touches;    // what may not go away before
  std::uint64_t link_bytes = 0;  // how many cross the link to the host
  // Set by the queue:
  std::vector<Point> after;
  std::uint64_t number = 0;
  Clock::time_point not_before;  // for the worker
};

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  std::deque<Work> queue;
  std::uint64_t last = 0;      // number of the newest piece
  std::uint64_t done = 0;      // pieces 1..done are done
  bool running = false;        // some thread is at piece done + 1, without the lock
  bool outside = false;        // piece done + 1 was started and is with others
  std::vector<Range> in_work;  // what that piece touches
  bool destroyed = false;
};

// All streams of the process. Eager: a piece runs within the call that hands
// it over; behind work that others do, when that has ended. Lazy: when somebody
// waits for it, or asks (one piece a question, and never waiting for others), or
// after lazy_ms on the stream's own worker thread.
// Every function is called with the driver's lock, which the running of a
// piece gives up for its time.
class Streams {
 public:
  explicit Streams(Mutex& mutex) : mutex_(mutex) {}

  StreamPtr Add(Context* context, unsigned flags, int priority);
  // Queues work behind what the stream (and, for streams that block with the
  // legacy default stream, that one) holds. Eager: runs it. Result: the error
  // of the process, if there is one by now.
  CUresult Submit(const StreamPtr& stream, Work work);
  // Returns when the point is done.
  CUresult Finish(const Point& point);
  CUresult FinishAll(const Context* context);
  // CUDA_ERROR_NOT_READY while it is not done. Asking makes lazy work go on.
  CUresult Ask(const Point& point);
  // The piece of the stream that others do has ended.
  void EndOutside(const StreamPtr& stream, CUresult error);
  Point End(const StreamPtr& stream) const { return {stream, stream->last}; }
  // Whether unfinished work touches the range.
  bool Busy(Range range) const;
  // Forgets the context's streams; their work is done first.
  void Drop(const Context* context);

 private:
  void RunOne(const StreamPtr& stream);
  void Started(const StreamPtr& stream, const Work& work, CUresult result);
  void Ended(const StreamPtr& stream, std::uint64_t number);
  void Drive(const StreamPtr& stream);
  void Advance(const StreamPtr& stream, std::uint64_t number);
  static bool Held(const Stream& stream);
  void WaitForLink(std::uint64_t bytes);
  void StartWorker(const StreamPtr& stream);
  void WorkerLoop(const StreamPtr& stream);
  void Sweep();

  Mutex& mutex_;
  CondVar changed_;
  std::vector<StreamPtr> all_;
  Clock::time_point link_free_{};
};

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_STREAMS_H_

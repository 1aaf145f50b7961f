#include "tests/fakes/cuda/streams.h"

#include <algorithm>
#include <thread>

#include "tests/fakes/cuda/driver.h"

namespace ckptd::fake_cuda {
namespace {

bool Overlap(const Range& a, const Range& b) {
  return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

bool TouchesAny(const std::vector<Range>& ranges, const Range& range) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& one) { return Overlap(one, range); });
}

bool Blocking(const Stream& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

}  // namespace

StreamPtr Streams::Add(Context* context, unsigned flags, int priority) {
  Sweep();
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  all_.push_back(stream);
  if (driver().config.lazy_ms) StartWorker(stream);
  return stream;
}

CUresult Streams::Submit(const StreamPtr& stream, Work work) {
  // Programming Guide, "Legacy default stream": its work waits for all blocking streams of the
  // context, and theirs for its.
  const StreamPtr legacy = stream->context->null_stream;
  for (const StreamPtr& other : all_) {
    const bool waits = (stream == legacy && Blocking(*other)) || other == legacy;
    const bool ordered = other != stream && other->context == stream->context && Blocking(*stream);
    if (ordered && waits && other->done < other->last) work.after.push_back(End(other));
  }
  const Config& config = driver().config;
  work.number = ++stream->last;
  work.not_before = Clock::now() + std::chrono::milliseconds(config.lazy_ms.value_or(0));
  stream->queue.push_back(std::move(work));
  changed_.NotifyAll();
  if (!config.lazy && !config.lazy_ms) Advance(stream, stream->last);
  return driver().sticky;
}

// Whether the next piece waits, at some remove, for others.
bool Streams::Held(const Stream& stream) {
  if (stream.outside) return true;
  if (stream.queue.empty()) return false;
  const std::vector<Point>& after = stream.queue.front().after;
  return std::any_of(after.begin(), after.end(), [](const Point& point) {
    return point.stream->done < point.number && Held(*point.stream);
  });
}

// Runs what is up to and with piece `number`, as far as others let it.
void Streams::Advance(const StreamPtr& stream, std::uint64_t number) {
  while (stream->done < number && !Held(*stream)) {
    if (stream->running) {
      const std::uint64_t seen = stream->done;
      changed_.Wait(mutex_, [&] { return stream->done != seen || !stream->running; });
    } else {
      RunOne(stream);
    }
  }
}

CUresult Streams::Finish(const Point& point) {
  while (point.stream != nullptr && point.stream->done < point.number) {
    const Stream& stream = *point.stream;
    if (stream.running || stream.outside) {
      const std::uint64_t seen = stream.done;
      changed_.Wait(mutex_,
                    [&] { return stream.done != seen || (!stream.running && !stream.outside); });
    } else {
      RunOne(point.stream);
    }
  }
  return driver().sticky;
}

CUresult Streams::FinishAll(const Context* context) {
  const std::vector<StreamPtr> streams = all_;
  for (const StreamPtr& stream : streams) {
    if (context == nullptr || stream->context == context) Finish(End(stream));
  }
  return driver().sticky;
}

CUresult Streams::Ask(const Point& point) {
  if (driver().sticky != CUDA_SUCCESS) return driver().sticky;
  if (point.stream == nullptr || point.stream->done >= point.number) return CUDA_SUCCESS;
  // Not ready this time, whatever happens: a caller that takes the first answer for success
  // is found, and one that polls gets there.
  if (!driver().config.lazy_ms) Drive(point.stream);
  return CUDA_ERROR_NOT_READY;
}

// One piece, of this stream or of one that it waits for.
void Streams::Drive(const StreamPtr& stream) {
  if (stream->running || stream->outside || stream->queue.empty()) return;
  for (const Point& point : stream->queue.front().after) {
    if (point.stream->done < point.number) return Drive(StreamPtr(point.stream));
  }
  RunOne(stream);
}

bool Streams::Busy(Range range) const {
  for (const StreamPtr& stream : all_) {
    if (TouchesAny(stream->in_work, range)) return true;
    for (const Work& work : stream->queue) {
      if (TouchesAny(work.touches, range)) return true;
    }
  }
  return false;
}

void Streams::Drop(const Context* context) {
  FinishAll(context);
  for (const StreamPtr& stream : all_) {
    if (stream->context == context) stream->destroyed = true;
  }
  Sweep();
}

void Streams::RunOne(const StreamPtr& stream) {
  Work work = std::move(stream->queue.front());
  stream->queue.pop_front();
  stream->running = true;
  stream->in_work = work.touches;
  for (const Point& point : work.after) Finish(point);
  // Nothing more happens in a context that is lost.
  CUresult result = driver().sticky;
  if (result == CUDA_SUCCESS && work.check) result = work.check();
  if (result != CUDA_SUCCESS) driver().Break(result);
  if (work.start) return Started(stream, work, result);
  if (result == CUDA_SUCCESS && work.run) {
    mutex_.Unlock();
    WaitForLink(work.link_bytes);
    work.run();
    mutex_.Lock();
  }
  stream->running = false;
  Ended(stream, work.number);
}

void Streams::Started(const StreamPtr& stream, const Work& work, CUresult result) {
  const bool lost = result != CUDA_SUCCESS;
  stream->outside = !lost;  // before: it may end at once
  mutex_.Unlock();
  work.start(lost);
  mutex_.Lock();
  stream->running = false;
  if (lost) Ended(stream, work.number);
  changed_.NotifyAll();
}

void Streams::Ended(const StreamPtr& stream, std::uint64_t number) {
  stream->in_work.clear();
  stream->done = number;
  changed_.NotifyAll();
}

void Streams::EndOutside(const StreamPtr& stream, CUresult error) {
  if (error != CUDA_SUCCESS) driver().Break(error);
  stream->outside = false;
  Ended(stream, stream->done + 1);
  const Config& config = driver().config;
  if (config.lazy || config.lazy_ms) return;
  const std::vector<StreamPtr> streams = all_;
  for (const StreamPtr& held : streams) Advance(held, held->last);
}

void Streams::WaitForLink(std::uint64_t bytes) {
  const std::uint64_t rate = driver().config.link_bytes_per_second;
  if (rate == 0 || bytes == 0) return;
  const auto takes = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(rate)));
  mutex_.Lock();
  link_free_ = std::max(link_free_, Clock::now()) + takes;
  const Clock::time_point until = link_free_;
  mutex_.Unlock();
  std::this_thread::sleep_until(until);
}

void Streams::StartWorker(const StreamPtr& stream) {
  // Lives as long as the process or the stream; the driver is never destroyed.
  std::thread([this, stream] { WorkerLoop(stream); }).detach();
}

void Streams::WorkerLoop(const StreamPtr& stream) {
  MutexLock lock(mutex_);
  while (true) {
    changed_.Wait(mutex_, [&] {
      return (!stream->queue.empty() && !stream->running && !stream->outside) ||
             (stream->destroyed && stream->queue.empty());
    });
    if (stream->queue.empty()) return;
    const Clock::time_point due = stream->queue.front().not_before;
    // Somebody who waits may run it before: then look again.
    const auto taken = [&] { return stream->queue.empty() || stream->running || stream->outside; };
    changed_.WaitUntil(mutex_, due, taken);
    if (!taken() && Clock::now() >= due) RunOne(stream);
  }
}

void Streams::Sweep() {
  std::erase_if(all_, [](const StreamPtr& stream) {
    return stream->destroyed && stream->queue.empty() && !stream->running && !stream->outside;
  });
  changed_.NotifyAll();
}

}  // namespace ckptd::fake_cuda

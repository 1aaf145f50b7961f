// Streams, events and host functions.
#include <chrono>
#include <utility>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

CUresult Create(Call& call, Context& context, unsigned flags, int priority, CUstream* out) {
  Driver& d = driver();
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const StreamPtr stream = d.streams.Add(&context, flags, priority);
  *out = reinterpret_cast<CUstream>(stream.get());
  d.stream_handles[*out] = stream;
  call.Note("stream", *out);
  return CUDA_SUCCESS;
}

Event* Find(CUevent event) {
  const auto found = driver().events.find(event);
  return found == driver().events.end() ? nullptr : found->second.get();
}

// What waits for nothing but its place in the stream.
CUresult SubmitMark(const StreamPtr& stream, std::vector<Point> after, std::function<void()> run) {
  Work work;
  work.after = std::move(after);
  work.run = std::move(run);
  return driver().streams.Submit(stream, std::move(work));
}

CUresult Record(Context& context, CUevent event, CUstream handle) {
  Driver& d = driver();
  Event* found = Find(event);
  const StreamPtr stream = d.Find(handle, context);
  // cuEventRecord: "hEvent and hStream must be from the same context otherwise
  // CUDA_ERROR_INVALID_HANDLE is returned."
  if (found == nullptr || stream == nullptr || found->context != stream->context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const auto reached = std::make_shared<Clock::time_point>();
  found->reached = reached;
  found->recorded = {stream, stream->last + 1};
  return SubmitMark(stream, {}, [reached] { *reached = Clock::now(); });
}

CUresult Elapsed(const Event* start, const Event* end, float* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Its text, word for word in this order.
  for (const Event* event : {start, end}) {
    if (event == nullptr || event->recorded.stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if ((event->flags & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  }
  for (const Event* event : {start, end}) {
    if (event->recorded.stream->done < event->recorded.number) return CUDA_ERROR_NOT_READY;
  }
  *out = std::chrono::duration<float, std::milli>(*end->reached - *start->reached).count();
  return CUDA_SUCCESS;
}

CUresult ElapsedCall(float* out, CUevent start, CUevent end) {
  return Call("cuEventElapsedTime", {{"start", start}, {"end", end}}).Run([&](Call&) {
    return Elapsed(Find(start), Find(end), out);
  });
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
  return Call("cuStreamCreate", {{"flags", flags}}).RunInContext([&](Call& call, Context& context) {
    return Create(call, context, flags, 0, stream);
  });
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  const Fields fields = {{"flags", flags}};
  return Call("cuStreamCreateWithPriority", fields).RunInContext([&](Call& call, Context& context) {
    return Create(call, context, flags, priority, stream);
  });
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  return Call("cuStreamDestroy", {{"stream", stream}})
      .RunInContext([&](Call&, Context&) -> CUresult {
        const auto found = driver().stream_handles.find(stream);
        if (found == driver().stream_handles.end()) return CUDA_ERROR_INVALID_HANDLE;
        // "the function will return immediately and the resources [...] will be released
        // automatically once the device has completed all work": it does not wait.
        found->second->destroyed = true;
        driver().stream_handles.erase(found);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  return Call("cuStreamSynchronize", {{"stream", stream}})
      .RunInContext([&](Call&, Context& context) -> CUresult {
        const StreamPtr found = driver().Find(stream, context);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        return driver().streams.Finish(driver().streams.End(found));
      });
}

CUresult CUDAAPI cuStreamQuery(CUstream stream) {
  return Call("cuStreamQuery", {{"stream", stream}})
      .RunInContext([&](Call&, Context& context) -> CUresult {
        const StreamPtr found = driver().Find(stream, context);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        return driver().streams.Ask(driver().streams.End(found));
      });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return Call("cuStreamWaitEvent", {{"stream", stream}, {"event", event}})
      .RunInContext([&](Call&, Context& context) -> CUresult {
        const StreamPtr found = driver().Find(stream, context);
        const Event* what = Find(event);
        if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
        if (found == nullptr || what == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        // An event that was never recorded, or in this very stream, has nothing to wait for.
        if (what->recorded.stream == nullptr || what->recorded.stream == found) return CUDA_SUCCESS;
        return SubmitMark(found, {what->recorded}, {});
      });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return Call("cuLaunchHostFunc", {{"stream", stream}})
      .RunInContext([&](Call&, Context& context) -> CUresult {
        const StreamPtr found = driver().Find(stream, context);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
        return SubmitMark(found, {}, [function, data] {
          InHostFunction() = true;
          function(data);
          InHostFunction() = false;
        });
      });
}

// Nothing is captured here; who asks is told what the thread said last.
CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return Call("cuThreadExchangeStreamCaptureMode", {}).Run([&](Call& call) -> CUresult {
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    call.Note("mode", *mode);
    std::swap(current, *mode);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned flags) {
  return Call("cuEventCreate", {{"flags", flags}})
      .RunInContext([&](Call& call, Context& context) -> CUresult {
        constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
        if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
        // Events between processes are not imitated (ckptd shares none: reference, 1.4).
        if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
        if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_unique<Event>();
        made->context = &context;
        made->flags = flags;
        *event = reinterpret_cast<CUevent>(made.get());
        driver().events[*event] = std::move(made);
        call.Note("event", *event);
        return CUDA_SUCCESS;
      });
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  return Call("cuEventDestroy", {{"event", event}}).RunInContext([&](Call&, Context&) {
    // "An event may be destroyed before it is complete": queued work has what it needs.
    return driver().events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  return Call("cuEventRecord", {{"event", event}, {"stream", stream}})
      .RunInContext([&](Call&, Context& context) { return Record(context, event, stream); });
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  return Call("cuEventSynchronize", {{"event", event}}).Run([&](Call&) -> CUresult {
    const Event* found = Find(event);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const Point recorded = found->recorded;  // the event may go while this thread waits
    return driver().streams.Finish(recorded);
  });
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  return Call("cuEventQuery", {{"event", event}}).Run([&](Call&) -> CUresult {
    const Event* found = Find(event);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const Point recorded = found->recorded;
    return driver().streams.Ask(recorded);
  });
}

#undef cuEventElapsedTime
__attribute__((visibility("default"))) CUresult CUDAAPI cuEventElapsedTime(float* out,
                                                                           CUevent start,
                                                                           CUevent end) {
  return ElapsedCall(out, start, end);
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* out, CUevent start, CUevent end) {
  return ElapsedCall(out, start, end);
}

}  // extern "C"

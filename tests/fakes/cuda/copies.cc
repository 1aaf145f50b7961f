#include "tests/fakes/cuda/copies.h"

#include <cstring>
#include <memory>
#include <vector>

namespace ckptd::fake_cuda {
namespace {

using Bytes = std::vector<unsigned char>;

std::size_t Span(const Side& side, const CopyJob& job) {
  return (job.height - 1) * side.pitch + job.width;
}

bool IsDevice(const Side& side) { return side.place == Place::kDevice; }

// Settles kEither; host addresses that are pinned memory count as the host's.
void Settle(Side& side) {
  if (side.place != Place::kEither) return;
  side.place = driver().space.OnDevice(side.address) ? Place::kDevice : Place::kHost;
}

// Of a device's side; the range must be known when the call is made.
CUresult CheckKnown(const Side& side, std::size_t bytes, bool write) {
  const Space& space = driver().space;
  if (space.Check(side.address, bytes, side.device, write) != Reach::kUnknown) return CUDA_SUCCESS;
  if (space.WasFreed(side.address))
    TraceViolation("use after free: a copy or fill of freed memory");
  return CUDA_ERROR_INVALID_VALUE;
}

// When the work runs: the range may have gone, or not be this device's to use. Reference, section
// 2.5: a write through a read-only mapping is an MMU fault that ends the context.
CUresult CheckReach(const Side& side, std::size_t bytes, bool write) {
  const Reach reach = driver().space.Check(side.address, bytes, side.device, write);
  return reach == Reach::kGood ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

void MoveRows(const CopyJob& job) {
  for (std::size_t row = 0; row < job.height; ++row) {
    std::memmove(reinterpret_cast<void*>(job.to.address + row * job.to.pitch),
                 reinterpret_cast<const void*>(job.from.address + row * job.from.pitch), job.width);
  }
}

// Reads the source now, into memory that the work owns.
std::shared_ptr<Bytes> Stage(CopyJob& job) {
  auto staged = std::make_shared<Bytes>(job.width * job.height);
  CopyJob read = job;
  read.to = {reinterpret_cast<Address>(staged->data()), Place::kHost, job.width, -1};
  MoveRows(read);
  job.from = read.to;
  return staged;
}

Work CopyWork(const CopyJob& job, std::shared_ptr<Bytes> staged) {
  Work work;
  work.check = [job] {
    CUresult good = CUDA_SUCCESS;
    if (IsDevice(job.from)) good = CheckReach(job.from, Span(job.from, job), false);
    if (good == CUDA_SUCCESS && IsDevice(job.to))
      good = CheckReach(job.to, Span(job.to, job), true);
    return good;
  };
  work.run = [job, staged] { MoveRows(job); };
  work.touches = {{job.to.address, Span(job.to, job)}};
  if (staged == nullptr) work.touches.push_back({job.from.address, Span(job.from, job)});
  if (IsDevice(job.to) != IsDevice(job.from)) work.link_bytes = job.width * job.height;
  return work;
}

CUresult CheckJob(const CopyJob& job) {
  constexpr std::size_t kMost = std::size_t{1} << 46;
  const bool narrow = job.height > 1 && (job.to.pitch < job.width || job.from.pitch < job.width);
  const bool huge = job.width > kMost / job.height || job.to.pitch > kMost / job.height ||
                    job.from.pitch > kMost / job.height;
  if (narrow || huge) return CUDA_ERROR_INVALID_VALUE;
  CUresult good = CUDA_SUCCESS;
  if (IsDevice(job.from)) good = CheckKnown(job.from, Span(job.from, job), false);
  if (good == CUDA_SUCCESS && IsDevice(job.to)) good = CheckKnown(job.to, Span(job.to, job), true);
  return good;
}

}  // namespace

CUresult SubmitCopy(Context& context, CUstream handle, CopyJob job) {
  Driver& d = driver();
  const StreamPtr stream = d.Find(handle, context);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (job.width == 0 || job.height == 0) return CUDA_SUCCESS;
  for (Side* side : {&job.to, &job.from}) {
    Settle(*side);
    if (side->device < 0) side->device = stream->context->device;
  }
  const CUresult good = CheckJob(job);
  if (good != CUDA_SUCCESS) return good;
  const bool from_pageable =
      !IsDevice(job.from) && !d.space.Pinned(job.from.address, Span(job.from, job));
  const bool to_pageable = !IsDevice(job.to) && !d.space.Pinned(job.to.address, Span(job.to, job));
  // Pageable to device, not async: the stream is done first. Either way the source is read before
  // the call returns, and the bytes may reach the device later.
  if (from_pageable && !job.async) d.streams.Finish(d.streams.End(stream));
  std::shared_ptr<Bytes> staged = from_pageable ? Stage(job) : nullptr;
  const CUresult queued = d.streams.Submit(stream, CopyWork(job, staged));
  if (queued != CUDA_SUCCESS) return queued;
  // Device to pageable returns when it is done, also when async. Not async: with pinned memory
  // too, but not from device to device, nor from pageable memory.
  const bool between_devices = IsDevice(job.to) && (IsDevice(job.from));
  const bool waits =
      to_pageable || (!job.async && !between_devices && !(from_pageable && IsDevice(job.to)));
  return waits ? d.streams.Finish(d.streams.End(stream)) : CUDA_SUCCESS;
}

CUresult SubmitFill(Context& context, CUstream handle, Address to, unsigned value,
                    std::size_t element, std::size_t count, bool async) {
  Driver& d = driver();
  const StreamPtr stream = d.Find(handle, context);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0) return CUDA_SUCCESS;
  const Side side{to, Place::kDevice, 0, stream->context->device};
  const std::size_t bytes = element * count;
  // cuMemsetD32: the address must be aligned to four bytes.
  if (to % element != 0 || bytes / element != count) return CUDA_ERROR_INVALID_VALUE;
  const CUresult good = CheckKnown(side, bytes, true);
  if (good != CUDA_SUCCESS) return good;
  Work work;
  work.check = [side, bytes] { return CheckReach(side, bytes, true); };
  work.run = [to, value, element, count] {
    if (element == 1)
      std::memset(reinterpret_cast<void*>(to), static_cast<int>(value & 0xff), count);
    if (element == 4) std::fill_n(reinterpret_cast<std::uint32_t*>(to), count, value);
  };
  work.touches = {{to, bytes}};
  const CUresult queued = d.streams.Submit(stream, std::move(work));
  // "The synchronous memset functions are asynchronous with respect to the host except when the
  // target is pinned host memory".
  const bool waits = !async && d.space.Pinned(to, bytes);
  return queued == CUDA_SUCCESS && waits ? d.streams.Finish(d.streams.End(stream)) : queued;
}

}  // namespace ckptd::fake_cuda

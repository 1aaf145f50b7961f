#include "tests/fakes/cuda/external.h"

#include <memory>

#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

struct Ticket {
  StreamPtr stream;
};

// A kernel that touches what it may not is an MMU fault, which ends the context.
CUresult CheckRanges(const std::vector<cuFakeRange>& ranges, int device) {
  const Space& space = driver().space;
  for (const cuFakeRange& range : ranges) {
    const auto address = static_cast<Address>(range.address);
    if (!space.OnDevice(address) && space.Pinned(address, range.bytes)) continue;
    if (space.Check(address, range.bytes, device, range.write) == Reach::kGood) continue;
    if (space.WasFreed(address)) TraceViolation("use after free: a collective on freed memory");
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult cuFakeEnqueue(CUstream stream, const cuFakeRange* ranges, std::size_t count,
                       cuFakeStart start, void* data) {
  const Fields fields = {{"stream", stream}, {"ranges", count}};
  return Call("cuFakeEnqueue", fields).RunInContext([&](Call&, Context& context) -> CUresult {
    const StreamPtr found = driver().Find(stream, context);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Work work;
    work.check = [kept = std::vector(ranges, ranges + count), device = found->context->device] {
      return CheckRanges(kept, device);
    };
    for (std::size_t i = 0; i < count; ++i) {
      work.touches.push_back({static_cast<Address>(ranges[i].address), ranges[i].bytes});
    }
    work.start = [start, data, found](bool lost) {
      start(data, lost ? nullptr : new Ticket{found});
    };
    return driver().streams.Submit(found, std::move(work));
  });
}

void cuFakeFinish(void* ticket, CUresult error) {
  const std::unique_ptr<Ticket> owned(static_cast<Ticket*>(ticket));
  ckptd::MutexLock lock(driver().mutex);
  driver().streams.EndOutside(owned->stream, error);
}

}  // extern "C"

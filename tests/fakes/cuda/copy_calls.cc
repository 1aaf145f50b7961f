// The entry points that copy and fill.
#include "tests/fakes/cuda/copies.h"

namespace ckptd::fake_cuda {
namespace {

struct CopyCall {
  const char* function;
  Address to;
  Place to_place;
  Address from;
  Place from_place;
  std::size_t bytes;
};

CUresult Run(const CopyCall& what, CUstream stream, bool async) {
  const Fields fields = {
      {"to", what.to}, {"from", what.from}, {"bytes", what.bytes}, {"stream", stream}};
  return Call(what.function, fields).RunInContext([&](Call&, Context& context) {
    CopyJob job;
    job.to = {what.to, what.to_place, what.bytes, -1};
    job.from = {what.from, what.from_place, what.bytes, -1};
    job.width = what.bytes;
    job.async = async;
    return SubmitCopy(context, stream, job);
  });
}

CUresult Fill(const char* function, Address to, unsigned value, std::size_t element,
              std::size_t count, CUstream stream, bool async) {
  const Fields fields = {{"to", to}, {"bytes", element * count}, {"stream", stream}};
  return Call(function, fields).RunInContext([&](Call&, Context& context) {
    return SubmitFill(context, stream, to, value, element, count, async);
  });
}

Address At(const void* host) { return reinterpret_cast<Address>(host); }

// One side of a 2D copy; false for arrays, which are not imitated.
bool ReadSide(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x, std::size_t y,
              std::size_t pitch, std::size_t width, Side& side) {
  if (type == CU_MEMORYTYPE_ARRAY) return false;
  // A pitch of 0 means rows without gaps.
  side.pitch = pitch == 0 ? width : pitch;
  const bool on_host = type == CU_MEMORYTYPE_HOST;
  side.place =
      on_host ? Place::kHost : (type == CU_MEMORYTYPE_DEVICE ? Place::kDevice : Place::kEither);
  side.address = (on_host ? At(host) : device) + y * side.pitch + x;
  return true;
}

CUresult Copy2D(Context& context, const CUDA_MEMCPY2D& what, CUstream stream) {
  CopyJob job;
  job.width = what.WidthInBytes;
  job.height = what.Height;
  const bool known = ReadSide(what.srcMemoryType, what.srcHost, what.srcDevice, what.srcXInBytes,
                              what.srcY, what.srcPitch, job.width, job.from) &&
                     ReadSide(what.dstMemoryType, what.dstHost, what.dstDevice, what.dstXInBytes,
                              what.dstY, what.dstPitch, job.width, job.to);
  return known ? SubmitCopy(context, stream, job) : CUDA_ERROR_NOT_SUPPORTED;
}

constexpr Place kHost = Place::kHost;
constexpr Place kDevice = Place::kDevice;
constexpr Place kEither = Place::kEither;

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return Run({"cuMemcpy", to, kEither, from, kEither, bytes}, nullptr, false);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                               CUstream stream) {
  return Run({"cuMemcpyAsync", to, kEither, from, kEither, bytes}, stream, true);
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  return Run({"cuMemcpyHtoD", to, kDevice, At(from), kHost, bytes}, nullptr, false);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes,
                                   CUstream stream) {
  return Run({"cuMemcpyHtoDAsync", to, kDevice, At(from), kHost, bytes}, stream, true);
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  return Run({"cuMemcpyDtoH", At(to), kHost, from, kDevice, bytes}, nullptr, false);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return Run({"cuMemcpyDtoHAsync", At(to), kHost, from, kDevice, bytes}, stream, true);
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return Run({"cuMemcpyDtoD", to, kDevice, from, kDevice, bytes}, nullptr, false);
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                   CUstream stream) {
  return Run({"cuMemcpyDtoDAsync", to, kDevice, from, kDevice, bytes}, stream, true);
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                   CUcontext from_context, std::size_t bytes, CUstream stream) {
  const Fields fields = {{"to", to}, {"from", from}, {"bytes", bytes}, {"stream", stream}};
  return Call("cuMemcpyPeerAsync", fields).RunInContext([&](Call&, Context& context) -> CUresult {
    const Context* target = driver().Find(to_context);
    const Context* source = driver().Find(from_context);
    if (target == nullptr || source == nullptr || !target->active() || !source->active()) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    // Each side is reached by its own device: works without peer access, too.
    CopyJob job;
    job.to = {to, kDevice, bytes, target->device};
    job.from = {from, kDevice, bytes, source->device};
    job.width = bytes;
    return SubmitCopy(context, stream, job);
  });
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* what, CUstream stream) {
  Fields fields = {{"stream", stream}};
  if (what != nullptr)
    fields.insert(fields.end(), {{"width", what->WidthInBytes}, {"height", what->Height}});
  return Call("cuMemcpy2DAsync", fields).RunInContext([&](Call&, Context& context) {
    return what == nullptr ? CUDA_ERROR_INVALID_VALUE : Copy2D(context, *what, stream);
  });
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t count) {
  return Fill("cuMemsetD8", to, value, 1, count, nullptr, false);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                 CUstream stream) {
  return Fill("cuMemsetD8Async", to, value, 1, count, stream, true);
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, std::size_t count) {
  return Fill("cuMemsetD32", to, value, 4, count, nullptr, false);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count,
                                  CUstream stream) {
  return Fill("cuMemsetD32Async", to, value, 4, count, stream, true);
}

}  // extern "C"

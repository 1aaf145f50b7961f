// Primary contexts, and which one a thread uses.
#include "tests/fakes/cuda/call.h"

namespace ckptd::fake_cuda {
namespace {

CUcontext Handle(Context* context) { return reinterpret_cast<CUcontext>(context); }

constexpr unsigned kKnownFlags = CU_CTX_FLAGS_MASK;

// The current context of the calling thread; null: none.
Context* Current() { return ContextStack().empty() ? nullptr : ContextStack().back(); }

// `context` or, for null, the current one.
CUresult DeviceOf(Call&, Context& context, CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = context.device;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ckptd::fake_cuda

using namespace ckptd::fake_cuda;  // NOLINT: the entry points are global by their nature

extern "C" {

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return Call("cuDevicePrimaryCtxRetain", {{"device", device}}).Run([&](Call&) -> CUresult {
    Device* found = driver().Find(device);
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    Context& primary = found->context;
    ++primary.retained;
    if (!primary.active()) primary.null_stream = driver().streams.Add(&primary, 0, 0);
    *context = Handle(&primary);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
  return Call("cuDevicePrimaryCtxRelease", {{"device", device}}).Run([&](Call&) -> CUresult {
    Device* found = driver().Find(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    // Its text: as many releases as retains; one more is an error.
    if (found->context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--found->context.retained == 0) driver().Destroy(found->context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
  return Call("cuDevicePrimaryCtxReset", {{"device", device}}).Run([&](Call&) -> CUresult {
    Device* found = driver().Find(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (found->context.active()) driver().Destroy(found->context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return Call("cuDevicePrimaryCtxGetState", {{"device", device}}).Run([&](Call&) -> CUresult {
    const Device* found = driver().Find(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (flags != nullptr) *flags = found->context.flags;
    if (active != nullptr) *active = found->context.active() ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  const Fields fields = {{"device", device}, {"flags", flags}};
  return Call("cuDevicePrimaryCtxSetFlags", fields).Run([&](Call&) -> CUresult {
    Device* found = driver().Find(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    found->context.flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  return Call("cuCtxSetCurrent", {{"context", context}}).Run([&](Call&) -> CUresult {
    // "If ctx is NULL, then the CUDA context previously bound to the calling CPU thread is
    // unbound"; otherwise it replaces the top of the stack.
    Context* found = driver().Find(context);
    if (found == nullptr && context != nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!ContextStack().empty()) ContextStack().pop_back();
    if (found != nullptr) ContextStack().push_back(found);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  return Call("cuCtxGetCurrent", {}).Run([&](Call&) -> CUresult {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = Handle(Current());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  return Call("cuCtxPushCurrent", {{"context", context}}).Run([&](Call&) -> CUresult {
    Context* found = driver().Find(context);
    if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    ContextStack().push_back(found);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
  return Call("cuCtxPopCurrent", {}).Run([&](Call&) -> CUresult {
    if (ContextStack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = Handle(Current());
    ContextStack().pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return Call("cuCtxGetDevice", {}).RunInContext([&](Call& call, Context& context) {
    return DeviceOf(call, context, device);
  });
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  if (context == nullptr) return cuCtxGetDevice(device);
  return Call("cuCtxGetDevice", {{"context", context}}).Run([&](Call& call) -> CUresult {
    Context* found = driver().Find(context);
    return found == nullptr ? CUDA_ERROR_INVALID_CONTEXT : DeviceOf(call, *found, device);
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return Call("cuCtxSynchronize", {}).RunInContext([&](Call&, Context& context) {
    return driver().streams.FinishAll(&context);
  });
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context) {
  if (context == nullptr) return cuCtxSynchronize();
  return Call("cuCtxSynchronize", {{"context", context}}).Run([&](Call&) -> CUresult {
    Context* found = driver().Find(context);
    return found == nullptr ? CUDA_ERROR_INVALID_CONTEXT : driver().streams.FinishAll(found);
  });
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const Fields fields = {{"peer", peer}, {"flags", flags}};
  return Call("cuCtxEnablePeerAccess", fields)
      .RunInContext([&](Call&, Context& context) -> CUresult {
        const Context* found = driver().Find(peer);
        // Its text: INVALID_CONTEXT "if there is no current context, peerContext is not a valid
        // context, or if the current context is peerContext"; INVALID_VALUE if flags is not 0.
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (found == nullptr || found == &context || !found->active())
          return CUDA_ERROR_INVALID_CONTEXT;
        if (!driver().config.peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        const bool fresh = context.peers.insert(found->device).second;
        return fresh ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
      });
}

}  // extern "C"

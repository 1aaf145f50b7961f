#include "tests/fakes/nccl/cuda.h"

#include <dlfcn.h>

namespace ckptd::fake_nccl {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// Under the names of their newest interfaces, as cuda.h's macros spell them.
bool Fill(void* library, Cuda& cuda) {
  return Find(library, "cuCtxGetCurrent", cuda.CtxGetCurrent) &&
         Find(library, "cuCtxPushCurrent_v2", cuda.CtxPushCurrent) &&
         Find(library, "cuCtxPopCurrent_v2", cuda.CtxPopCurrent) &&
         Find(library, "cuCtxGetDevice", cuda.CtxGetDevice) &&
         Find(library, "cuDeviceGetUuid_v2", cuda.DeviceGetUuid) &&
         Find(library, "cuEventCreate", cuda.EventCreate) &&
         Find(library, "cuEventRecord", cuda.EventRecord) &&
         Find(library, "cuEventDestroy_v2", cuda.EventDestroy) &&
         Find(library, "cuStreamWaitEvent", cuda.StreamWaitEvent) &&
         Find(library, "cuFakeEnqueue", cuda.FakeEnqueue) &&
         Find(library, "cuFakeFinish", cuda.FakeFinish);
}

const Cuda* Load() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  static Cuda made;
  return Fill(library, made) ? &made : nullptr;
}

}  // namespace

const Cuda* cuda() {
  static const Cuda* const loaded = Load();
  return loaded;
}

}  // namespace ckptd::fake_nccl

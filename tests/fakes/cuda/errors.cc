// Names of errors: callable always.
#include "tests/fakes/cuda/driver_api.h"

namespace {

struct Named {
  CUresult code;
  const char* name;
  const char* text;
};

#define CKPTD_ERROR(name, text) \
  { name, #name, text }
constexpr Named kErrors[] = {
    CKPTD_ERROR(CUDA_SUCCESS, "no error"),
    CKPTD_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    CKPTD_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    CKPTD_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    CKPTD_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    CKPTD_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    CKPTD_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    CKPTD_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    CKPTD_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    CKPTD_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    CKPTD_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported"),
    CKPTD_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or not supported"),
    CKPTD_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    CKPTD_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    CKPTD_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    CKPTD_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    CKPTD_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    CKPTD_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    CKPTD_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "memory range is already pinned"),
    CKPTD_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer is no pinned memory"),
    CKPTD_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    CKPTD_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    CKPTD_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    CKPTD_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    CKPTD_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef CKPTD_ERROR

// "If the error code is not recognized, CUDA_ERROR_INVALID_VALUE will be returned and *pStr will be
// set to the NULL address."
CUresult Answer(CUresult code, const char* Named::*part, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  for (const Named& error : kErrors) {
    if (error.code == code) *out = error.*part;
  }
  return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetErrorName(CUresult code, const char** out) {
  return Answer(code, &Named::name, out);
}

CUresult CUDAAPI cuGetErrorString(CUresult code, const char** out) {
  return Answer(code, &Named::text, out);
}

}  // extern "C"

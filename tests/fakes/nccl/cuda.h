// The few functions of the (fake) driver that the fake NCCL needs, found in the library that
// the process uses: it never links one.
#ifndef CKPTD_TESTS_FAKES_NCCL_CUDA_H_
#define CKPTD_TESTS_FAKES_NCCL_CUDA_H_

#include "tests/fakes/cuda/external.h"

namespace ckptd::fake_nccl {

struct Cuda {
  decltype(&::cuCtxGetCurrent) CtxGetCurrent = nullptr;
  decltype(&::cuCtxPushCurrent) CtxPushCurrent = nullptr;
  decltype(&::cuCtxPopCurrent) CtxPopCurrent = nullptr;
  CUresult(CUDAAPI* CtxGetDevice)(CUdevice*) = nullptr;
  decltype(&::cuDeviceGetUuid_v2) DeviceGetUuid = nullptr;
  decltype(&::cuEventCreate) EventCreate = nullptr;
  decltype(&::cuEventRecord) EventRecord = nullptr;
  decltype(&::cuEventDestroy) EventDestroy = nullptr;
  decltype(&::cuStreamWaitEvent) StreamWaitEvent = nullptr;
  decltype(&::cuFakeEnqueue) FakeEnqueue = nullptr;
  decltype(&::cuFakeFinish) FakeFinish = nullptr;
};

// Null: there is no libcuda.so.1, or it is no fake one.
const Cuda* cuda();

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_CUDA_H_

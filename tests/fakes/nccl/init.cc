#include "tests/fakes/nccl/init.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "tests/fakes/cuda/trace.h"
#include "tests/fakes/nccl/group.h"
#include "tests/fakes/nccl/warn.h"

namespace ckptd::fake_nccl {
namespace {

int EnvironmentNumber(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoi(text);
}

std::uint64_t HostHash() {
  char name[256] = {};
  const char* chosen = std::getenv("NCCL_HOSTID");
  if (chosen == nullptr && ::gethostname(name, sizeof name - 1) == 0) chosen = name;
  return std::hash<std::string>()(chosen == nullptr ? "" : chosen);
}

// The GPU of the calling thread's context.
ncclResult_t AboutGpu(RankInfo& info, CUcontext& context) {
  if (cuda() == nullptr) return Warn(ncclUnhandledCudaError, "there is no (fake) driver");
  CUdevice device = 0;
  CUuuid uuid{};
  cuda()->CtxGetCurrent(&context);
  if (context == nullptr) {
    // The CUDA runtime would take device 0, whichever the caller meant.
    fake_cuda::TraceViolation("a communicator is made without a current context");
    return Warn(ncclUnhandledCudaError, "no current context");
  }
  if (cuda()->CtxGetDevice(&device) != CUDA_SUCCESS ||
      cuda()->DeviceGetUuid(&uuid, device) != CUDA_SUCCESS) {
    return Warn(ncclUnhandledCudaError, "the driver refuses");
  }
  std::memcpy(info.gpu, uuid.bytes, sizeof info.gpu);
  return ncclSuccess;
}

// parseCommConfig (init.cc): an uninitialised one, and a range of CTAs that is none. `blocking` is
// 1 unless said otherwise; the environment wins.
ncclResult_t ReadConfig(const ncclConfig_t* config, bool& blocking) {
  int chosen = 1;
  if (config != nullptr) {
    if (config->magic != NCCL_API_MAGIC)
      return Warn(ncclInvalidArgument, "a config of no initializer");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT) chosen = config->blocking;
    const auto wrong = [](int ctas) { return ctas != NCCL_CONFIG_UNDEF_INT && ctas <= 0; };
    if (wrong(config->minCTAs) || wrong(config->maxCTAs) || config->minCTAs > config->maxCTAs) {
      return Warn(ncclInvalidArgument, "minCTAs and maxCTAs make no range");
    }
  }
  chosen = EnvironmentNumber("NCCL_COMM_BLOCKING", chosen);
  blocking = chosen != 0;
  return chosen == 0 || chosen == 1 ? ncclSuccess : Warn(ncclInvalidArgument, "config's blocking");
}

}  // namespace

bool RefusedInGroup() {
  if (InGroup()) fake_cuda::TraceViolation("making or ending a communicator within a group");
  return InGroup();
}

ncclResult_t Init(ncclComm_t* out, const ncclUniqueId& id, RankInfo info,
                  const ncclConfig_t* config, const Fault* fault) {
  if (RefusedInGroup()) return ncclInvalidUsage;
  if (out == nullptr) return Warn(ncclInvalidArgument, "no place for the communicator");
  *out = nullptr;
  // ncclCommInitRankDev (init.cc).
  if (info.world < 1 || info.rank < 0 || info.rank >= info.world) {
    return Warn(ncclInvalidArgument, "the rank is out of range");
  }
  bool blocking = true;
  CUcontext context = nullptr;
  ncclResult_t good = ReadConfig(config, blocking);
  if (good == ncclSuccess) good = AboutGpu(info, context);
  if (good != ncclSuccess) return good;
  info.version = fake_nccl::config().version;
  info.shares_gpu = EnvironmentNumber("NCCL_MULTI_RANK_GPU_ENABLE", 0);
  info.host = HostHash();
  const auto comm = std::make_shared<Comm>(info, context, blocking);
  *out = AddComm(comm);
  comm->Init(id, fault);
  return blocking ? comm->Wait() : ncclInProgress;
}

}  // namespace ckptd::fake_nccl

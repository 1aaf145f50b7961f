// The entry points, and what each of them refuses. Line numbers would change: the sources named are
// files of NCCL 2.30.7.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/fakes/cuda/trace.h"
#include "tests/fakes/nccl/group.h"
#include "tests/fakes/nccl/init.h"
#include "tests/fakes/nccl/warn.h"

namespace ckptd::fake_nccl {
namespace {

using fake_cuda::Fields;

// Faults and a line in the trace around every call. Faults of work that begins and then fails are
// left to the body.
template <typename Body>
ncclResult_t Call(const char* function, int rank, const Fields& fields, Body body) {
  const Fault* fault = NextFault(function, rank);
  if (fault != nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(fault->delay_ms));
    if (fault->die && fault->after_bytes == 0) ::kill(::getpid(), SIGKILL);
  }
  const bool refused = fault != nullptr && fault->error;
  const ncclResult_t result =
      refused ? Warn(static_cast<ncclResult_t>(*fault->error), "scripted") : body(fault);
  fake_cuda::TraceCall(function, fields, result, false);
  return result;
}

// For calls on a communicator. argcheck.cc: a null or corrupted one is an invalid argument.
template <typename Body>
ncclResult_t CommCall(const char* function, ncclComm_t handle, Fields fields, Body body) {
  const CommPtr comm = FindComm(handle);
  if (comm == nullptr) return Warn(ncclInvalidArgument, "no such communicator");
  fields.emplace_back("comm", comm->number());
  fields.emplace_back("rank", comm->rank());
  return Call(function, comm->rank(), fields,
              [&](const Fault* fault) { return body(comm, fault); });
}

std::size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

// ncclEnqueueCheck (enqueue.cc) and ArgsCheck (argcheck.cc). Pointers are not checked: a kernel
// finds out.
ncclResult_t Operate(const CommPtr& comm, Op op, ncclDataType_t type, const Fault* fault) {
  ncclResult_t good = comm->EnsureReady();
  if (good == ncclSuccess && comm->finalize_called) {
    fake_cuda::TraceViolation("an operation on a communicator that was finalized");
    good = ncclInvalidUsage;
  }
  if (good == ncclSuccess && (op.peer < 0 || op.peer >= comm->world())) {
    good = Warn(ncclInvalidArgument, "the peer or root is out of range");
  }
  if (good == ncclSuccess && (type < 0 || type >= ncclNumTypes)) {
    good = Warn(ncclInvalidArgument, "no such type");
  }
  if (good != ncclSuccess) {
    if (!comm->blocking()) comm->Fail(good);
    return GroupError(good);
  }
  op.fault = fault;
  return AddOp(comm, op);
}

}  // namespace
}  // namespace ckptd::fake_nccl

using namespace ckptd::fake_nccl;  // NOLINT: the entry points are global by their nature

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = config().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return Call("ncclGetUniqueId", -1, {}, [&](const Fault*) -> ncclResult_t {
    if (id == nullptr) return Warn(ncclInvalidArgument, "no place for the id");
    // bootstrapGetUniqueId (bootstrap.cc): the id then leads wherever that says.
    if (std::getenv("NCCL_COMM_ID") != nullptr) {
      ckptd::fake_cuda::TraceViolation("NCCL_COMM_ID redirects the unique id");
      *id = {};
      return ncclSuccess;
    }
    return ServeId(*id);
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress",
                                    "timeout"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return LastWarning(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  RankInfo info;
  info.rank = rank;
  info.world = world;
  return Call("ncclCommInitRankConfig", rank, {{"rank", rank}, {"world", world}},
              [&](const Fault* fault) { return Init(comm, id, info, config, fault); });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int world, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, world, id, rank, nullptr);
}

// Not in the trace: who waits asks often.
ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* out) {
  const CommPtr comm = FindComm(handle);
  if (comm == nullptr || out == nullptr) return Warn(ncclInvalidArgument, "no such communicator");
  *out = comm->Poll();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return CommCall("ncclCommFinalize", handle, {}, [&](const CommPtr& comm, const Fault* fault) {
    if (RefusedInGroup()) return ncclInvalidUsage;
    const ncclResult_t ready = comm->EnsureReady();
    if (ready != ncclSuccess) return ready;
    // "prevent double finalize" (init.cc).
    if (comm->finalize_called) return Warn(ncclInvalidArgument, "finalized twice");
    if (fault != nullptr && fault->hang) comm->Postpone(nullptr);
    const ncclResult_t begun = fault != nullptr && fault->hang ? ncclInProgress : comm->Finalize();
    return comm->blocking() ? comm->Wait() : begun;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return CommCall("ncclCommDestroy", handle, {}, [&](const CommPtr& comm, const Fault*) {
    if (RefusedInGroup()) return ncclInvalidUsage;
    const ncclResult_t ready = comm->EnsureReady();
    if (ready != ncclSuccess) return ready;
    // commReclaim (init.cc): without ncclCommFinalize it waits here, without an end.
    if (!comm->finalize_called) {
      comm->Finalize();
      comm->Wait();
    }
    RemoveComm(handle);
    comm->Abort();  // nothing is left to abort
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return CommCall("ncclCommAbort", handle, {}, [&](const CommPtr& comm, const Fault* fault) {
    if (RefusedInGroup()) return ncclInvalidUsage;
    while (fault != nullptr && fault->hang) std::this_thread::sleep_for(std::chrono::hours(1));
    RemoveComm(handle);
    comm->Abort();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  return CommCall("ncclCommCount", handle, {}, [&](const CommPtr& comm, const Fault*) {
    if (count == nullptr) return Warn(ncclInvalidArgument, "no place for the count");
    const ncclResult_t ready = comm->EnsureReady();
    if (ready == ncclSuccess) *count = comm->world();
    return ready;
  });
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  return CommCall("ncclCommUserRank", handle, {}, [&](const CommPtr& comm, const Fault*) {
    if (rank == nullptr) return Warn(ncclInvalidArgument, "no place for the rank");
    const ncclResult_t ready = comm->EnsureReady();
    if (ready == ncclSuccess) *rank = comm->rank();
    return ready;
  });
}

ncclResult_t ncclGroupStart() { return GroupStart(); }

ncclResult_t ncclGroupEnd() {
  bool ended = false;
  const ncclResult_t result = Call("ncclGroupEnd", -1, {}, [&ended](const Fault*) {
    ended = true;
    return GroupEnd();
  });
  // With an error, too, the thread has left its group (ncclGroupEndInternal, group.cc).
  if (!ended) {
    GroupError(result);
    static_cast<void>(GroupEnd());
  }
  return result;
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t handle, cudaStream_t stream) {
  const std::size_t bytes = count * SizeOf(type);
  const Fields fields = {{"bytes", bytes}, {"peer", peer}, {"stream", stream}};
  return CommCall("ncclSend", handle, fields, [&](const CommPtr& comm, const Fault* fault) {
    const auto* data = static_cast<const char*>(from);
    return Operate(comm, {OpKind::kSend, data, nullptr, bytes, peer, stream}, type, fault);
  });
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                      cudaStream_t stream) {
  const std::size_t bytes = count * SizeOf(type);
  const Fields fields = {{"bytes", bytes}, {"peer", peer}, {"stream", stream}};
  return CommCall("ncclRecv", handle, fields, [&](const CommPtr& comm, const Fault* fault) {
    auto* data = static_cast<char*>(to);
    return Operate(comm, {OpKind::kReceive, nullptr, data, bytes, peer, stream}, type, fault);
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t handle, cudaStream_t stream) {
  const std::size_t bytes = count * SizeOf(type);
  const Fields fields = {{"bytes", bytes}, {"root", root}, {"stream", stream}};
  return CommCall("ncclBroadcast", handle, fields, [&](const CommPtr& comm, const Fault* fault) {
    const auto* source = static_cast<const char*>(from);
    auto* target = static_cast<char*>(to);
    return Operate(comm, {OpKind::kBroadcast, source, target, bytes, root, stream}, type, fault);
  });
}

}  // extern "C"

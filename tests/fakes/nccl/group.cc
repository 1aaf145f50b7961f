#include "tests/fakes/nccl/group.h"

#include <algorithm>
#include <utility>

#include "tests/fakes/nccl/warn.h"

namespace ckptd::fake_nccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<CommPtr, std::vector<Op>>> ops;
};

Group& group() {
  thread_local Group made;
  return made;
}

struct Queued {
  std::shared_ptr<Engine> engine;
  std::unique_ptr<Launch> launch;
};

void Start(void* data, void* ticket) {
  const std::unique_ptr<Queued> queued(static_cast<Queued*>(data));
  if (ticket == nullptr) {
    queued->engine->Forget();
  } else {
    queued->engine->Begin(std::move(queued->launch), ticket);
  }
}

std::vector<cuFakeRange> Ranges(const std::vector<Op>& ops, int rank) {
  std::vector<cuFakeRange> ranges;
  const auto add = [&](const void* address, std::size_t bytes, bool write) {
    if (bytes > 0) ranges.push_back({reinterpret_cast<CUdeviceptr>(address), bytes, write});
  };
  for (const Op& op : ops) {
    const bool reads =
        op.kind == OpKind::kSend || (op.kind == OpKind::kBroadcast && op.peer == rank);
    if (reads) add(op.from, op.bytes, false);
    if (op.kind != OpKind::kSend) add(op.to, op.bytes, true);
  }
  return ranges;
}

// `later` waits for all that is in `first` by now.
bool Chain(CUstream first, CUstream later) {
  CUevent event = nullptr;
  const bool good = cuda()->EventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
                    cuda()->EventRecord(event, first) == CUDA_SUCCESS &&
                    cuda()->StreamWaitEvent(later, event, 0) == CUDA_SUCCESS;
  cuda()->EventDestroy(event);
  return good;
}

// "This will enforce a stream dependency of all streams before the NCCL kernel starts and block
// all streams until the NCCL kernel completes" (user guide, streams). And launches of one
// communicator follow each other, whatever their streams (ncclLaunchPrepare, enqueue.cc).
bool Enqueue(Comm& comm, const std::vector<CUstream>& streams, std::vector<Op> ops) {
  const CUstream main = streams.front();
  bool good = true;
  for (const CUstream stream : streams) good = good && (stream == main || Chain(stream, main));
  if (comm.last_launch == nullptr) {
    good = good && cuda()->EventCreate(&comm.last_launch, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
  } else {
    good = good && cuda()->StreamWaitEvent(main, comm.last_launch, 0) == CUDA_SUCCESS;
  }
  if (!good) return false;
  const std::vector<cuFakeRange> ranges = Ranges(ops, comm.rank());
  auto queued = std::make_unique<Queued>();
  queued->engine = comm.engine()->shared_from_this();
  queued->launch = std::make_unique<Launch>();
  queued->launch->ops = std::move(ops);
  comm.engine()->Expect();
  if (cuda()->FakeEnqueue(main, ranges.data(), ranges.size(), &Start, queued.get()) !=
      CUDA_SUCCESS) {
    comm.engine()->Forget();
    return false;
  }
  static_cast<void>(queued.release());
  good = cuda()->EventRecord(comm.last_launch, main) == CUDA_SUCCESS;
  for (const CUstream stream : streams) good = good && (stream == main || Chain(main, stream));
  return good;
}

ncclResult_t LaunchOps(const CommPtr& comm, std::vector<Op> ops) {
  std::vector<CUstream> streams;
  for (const Op& op : ops) {
    if (std::count(streams.begin(), streams.end(), op.stream) == 0) streams.push_back(op.stream);
  }
  CUcontext previous = nullptr;
  if (cuda()->CtxPushCurrent(comm->context()) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  const bool good = Enqueue(*comm, streams, std::move(ops));
  cuda()->CtxPopCurrent(&previous);
  return good ? ncclSuccess : Warn(ncclUnhandledCudaError, "the driver refuses a launch");
}

// "Trying to send to self without a matching recv" (enqueue.cc).
bool SelfMatched(const Comm& comm, const std::vector<Op>& ops) {
  int balance = 0;
  for (const Op& op : ops) {
    if (op.kind == OpKind::kBroadcast || op.peer != comm.rank()) continue;
    balance += op.kind == OpKind::kSend ? 1 : -1;
  }
  return balance == 0;
}

ncclResult_t Run(Group& done) {
  if (done.error != ncclSuccess) return done.error;
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, ops] : done.ops) {
    if (comm->blocking() != done.ops.front().first->blocking()) {
      return Warn(ncclInvalidArgument, "blocking and non-blocking communicators in one group");
    }
    if (!SelfMatched(*comm, ops))
      return Warn(ncclInvalidUsage, "a send to oneself without its recv");
  }
  for (auto& [comm, ops] : done.ops) {
    if (comm->blocking()) {
      const ncclResult_t launched = LaunchOps(comm, std::move(ops));
      if (launched != ncclSuccess) result = launched;
      continue;
    }
    // A thread of its own in the real one (group.cc): the launch may come any time after.
    comm->Postpone([comm = comm.get(), ops = std::move(ops)] {
      return LaunchOps(comm->shared_from_this(), ops);
    });
    result = ncclInProgress;
  }
  return result;
}

}  // namespace

bool InGroup() { return group().depth > 0; }

ncclResult_t GroupStart() {
  ++group().depth;
  return ncclSuccess;
}

ncclResult_t GroupEnd() {
  if (group().depth == 0) return Warn(ncclInvalidUsage, "ncclGroupEnd outside of a group");
  if (--group().depth > 0) return ncclSuccess;
  Group done = std::exchange(group(), Group());
  return Run(done);
}

ncclResult_t GroupError(ncclResult_t error) {
  if (group().depth > 0) group().error = error;
  return error;
}

ncclResult_t AddOp(const CommPtr& comm, const Op& op) {
  GroupStart();
  auto& all = group().ops;
  auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == comm; });
  if (found == all.end()) found = all.insert(all.end(), {comm, {}});
  found->second.push_back(op);
  return GroupEnd();
}

}  // namespace ckptd::fake_nccl

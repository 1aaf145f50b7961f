#include "server/load/prepared_load.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/rank_load.h"
#include "server/protocol/timing.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

absl::Status Over(const std::string& name) {
  return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                   "receiving " + name + ": the load is over; load again");
}

}  // namespace

PreparedLoad::PreparedLoad(const PrepareCall& call, std::shared_ptr<const Shard> shard,
                           std::weak_ptr<ShardMemory> memory)
    : epoch_(call.epoch),
      name_(call.name),
      request_(call.request),
      index_(call.index),
      shard_(std::move(shard)),
      memory_(std::move(memory)) {}

absl::StatusOr<RankPlan> PreparedLoad::PlanCopies() const {
  return PlanOfRank(request_, *index_, plan().rank);
}

absl::StatusOr<std::shared_ptr<FrameReceiver>> PreparedLoad::Receiver(ShardMemory& memory) {
  MutexLock lock(mutex_);
  if (finishing_) return Over(name_);
  std::shared_ptr<FrameReceiver> receiver = receiver_.lock();
  if (receiver == nullptr) {
    CKPTD_ASSIGN_OR_RETURN(RankPlan plan, PlanCopies());
    CKPTD_ASSIGN_OR_RETURN(receiver, FrameReceiver::Make(index_, std::move(plan), memory.View(),
                                                         request_.digests));
    receiver_ = receiver;
    memory.FilledBy(receiver);
  }
  return receiver;
}

absl::Status PreparedLoad::Take(const FrameHeader& header,
                            std::span<const std::span<const std::byte>> pieces) {
  // Held while bytes are placed.
  const std::shared_ptr<ShardMemory> memory = memory_.lock();
  if (memory == nullptr) return Over(name_);
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<FrameReceiver> receiver, Receiver(*memory));
  return receiver->Take(header, pieces);
}

void PreparedLoad::NoteCarried(uint64_t bytes) {
  MutexLock lock(mutex_);
  carried_ += bytes;
}

absl::StatusOr<std::vector<uint64_t>> PreparedLoad::Finish(const CommitCall& call) {
  // Held while its bytes are counted and read: the load may fail meanwhile.
  const std::shared_ptr<ShardMemory> memory = memory_.lock();
  if (memory == nullptr) return Over(name_);
  uint64_t came = 0;
  std::shared_ptr<FrameReceiver> receiver;
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    came = carried_ + call.carried_bytes;
    receiver = receiver_.lock();
  }
  if (receiver != nullptr) {
    CKPTD_RETURN_IF_ERROR(receiver->Close(timing::kSinkClose));
    came += receiver->placed_bytes();
  }
  if (call.tensor_bytes != plan().tensor_bytes || came != call.streamed_bytes) {
    return MakeError(absl::StatusCode::kInternal, reason::kCoverage,
                     fmt::format("publishing {} on rank {}: readers placed {} bytes and sent {}, "
                                 "{} came, the plan has {}; nothing was published, please report "
                                 "this",
                                 name_, plan().rank, call.tensor_bytes - call.streamed_bytes,
                                 call.streamed_bytes, came, plan().tensor_bytes));
  }
  return DigestsOf(call, *memory, receiver.get());
}

absl::StatusOr<std::vector<uint64_t>> PreparedLoad::DigestsOf(const CommitCall& call,
                                                          const ShardMemory& memory,
                                                          const FrameReceiver* receiver) const {
  if (!request_.digests || !call.digests.empty()) return call.digests;
  if (call.streamed_bytes == plan().tensor_bytes && receiver != nullptr) return receiver->Digests();
  // Several readers shared the work: none of them has seen whole blocks.
  const SlabView view = memory.View();
  std::vector<uint64_t> digests;
  for (const PlannedTensor& tensor : plan().tensors) {
    CKPTD_ASSIGN_OR_RETURN(const uint64_t digest,
                           DigestInSlab(view, tensor.offset, tensor.bytes));
    digests.push_back(digest);
  }
  return digests;
}

}  // namespace ckptd

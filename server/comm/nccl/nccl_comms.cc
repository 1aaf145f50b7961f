#include "server/comm/nccl/nccl_comms.h"

#include <cstring>
#include <optional>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cuda/stream.h"

namespace ckptd {
namespace {

class NcclComm final : public GroupComm {
 public:
  NcclComm(std::shared_ptr<CudaDevice> device, std::unique_ptr<Communicator> communicator,
           CudaStream stream)
      : device_(std::move(device)),
        stream_(std::move(stream)),
        communicator_(std::move(communicator)) {}
  // The memory that it receives into may be freed before: work in the stream keeps it.
  ~NcclComm() override = default;

  absl::Status Begin() override { return Noted(communicator_->Begin()); }
  absl::Status Send(const StagedMemory& from, uint64_t offset, uint64_t bytes,
                    uint32_t peer) override {
    return Noted(communicator_->Send(from.address() + offset, bytes, peer, stream_.get()));
  }
  absl::Status Receive(const StagedMemory& to, uint64_t offset, uint64_t bytes,
                       uint32_t peer) override {
    return Noted(communicator_->Receive(to.address() + offset, bytes, peer, stream_.get()));
  }
  absl::Status Broadcast(const StagedMemory& memory, uint64_t offset, uint64_t bytes,
                         uint32_t root) override {
    const CUdeviceptr at = memory.address() + offset;
    return Noted(communicator_->Broadcast(at, at, bytes, root, stream_.get()));
  }
  absl::Status End(Deadline deadline) override { return Noted(communicator_->End(deadline)); }
  absl::Status Wait(Deadline deadline) override {
    return Noted(communicator_->Wait(stream_.get(), deadline));
  }
  absl::Status Close(Deadline deadline) override { return Noted(communicator_->Close(deadline)); }
  void Interrupt(std::function<absl::Status()> interrupted) override {
    communicator_->Interrupt(std::move(interrupted));
  }

 private:
  // After an error a kernel may stay in the stream as long as the stream exists.
  absl::Status Noted(absl::Status status) {
    if (!status.ok() && !unfinished_.has_value()) unfinished_.emplace(device_);
    return status;
  }

  const std::shared_ptr<CudaDevice> device_;
  std::optional<CudaClaim> unfinished_;
  CudaStream stream_;  // destroyed after its work; the device knows what may still run
  const std::unique_ptr<Communicator> communicator_;
};

}  // namespace

absl::StatusOr<std::string> NcclComms::MakeId() {
  CKPTD_ASSIGN_OR_RETURN(const NcclUniqueId id, library_->MakeUniqueId());
  return std::string(reinterpret_cast<const char*>(id.data()), id.size());
}

absl::StatusOr<std::unique_ptr<GroupComm>> NcclComms::Join(GroupCommOptions options,
                                                           GroupComm::Deadline deadline) {
  CommunicatorOptions join;
  if (options.id.size() != join.id.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "joining an NCCL communicator: its id is not one of NCCL's; run the same "
                     "ckptd on every rank");
  }
  std::memcpy(join.id.data(), options.id.data(), join.id.size());
  join.rank = options.rank;
  join.world_size = static_cast<uint32_t>(options.names.size());
  join.names = std::move(options.names);
  join.name = std::move(options.name);
  join.interrupted = std::move(options.interrupted);
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device, device_());
  CKPTD_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Make(device));
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         Communicator::Make(library_, device, std::move(join)));
  if (const absl::Status entered = communicator->Enter(deadline); !entered.ok()) {
    MutexLock lock(mutex_);
    not_joined_.push_back(std::move(communicator));
    return entered;
  }
  return std::make_unique<NcclComm>(std::move(device), std::move(communicator), std::move(stream));
}

void NcclComms::AwaitEnds() {
  std::vector<std::unique_ptr<Communicator>> ending;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  ending.swap(not_joined_);
}

}  // namespace ckptd

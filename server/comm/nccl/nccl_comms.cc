#include "server/comm/nccl/nccl_comms.h"

#include <cstring>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cuda/stream.h"
#include "server/comm/nccl/communicator.h"

namespace ckptd {
namespace {

class NcclComm final : public GroupComm {
 public:
  NcclComm(std::unique_ptr<Communicator> communicator, CudaStream stream)
      : stream_(std::move(stream)), communicator_(std::move(communicator)) {}
  // What it received into goes after it: work that is still in the stream keeps that memory.
  ~NcclComm() override = default;

  absl::Status Begin() override { return communicator_->Begin(); }
  absl::Status Send(const StagedMemory& from, uint64_t offset, uint64_t bytes,
                    uint32_t peer) override {
    return communicator_->Send(from.address() + offset, bytes, peer, stream_.get());
  }
  absl::Status Receive(const StagedMemory& to, uint64_t offset, uint64_t bytes,
                       uint32_t peer) override {
    return communicator_->Receive(to.address() + offset, bytes, peer, stream_.get());
  }
  absl::Status Broadcast(const StagedMemory& memory, uint64_t offset, uint64_t bytes,
                         uint32_t root) override {
    const CUdeviceptr at = memory.address() + offset;
    return communicator_->Broadcast(at, at, bytes, root, stream_.get());
  }
  absl::Status End(Deadline deadline) override { return communicator_->End(deadline); }
  absl::Status Wait(Deadline deadline) override {
    return communicator_->Wait(stream_.get(), deadline);
  }
  absl::Status Close(Deadline deadline) override { return communicator_->Close(deadline); }
  void Interrupt(std::function<absl::Status()> interrupted) override {
    communicator_->Interrupt(std::move(interrupted));
  }

 private:
  CudaStream stream_;  // goes after what runs on it, and its device knows what still may
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
  CKPTD_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> communicator,
      Communicator::Join(library_, std::move(device), std::move(join), deadline));
  return std::make_unique<NcclComm>(std::move(communicator), std::move(stream));
}

}  // namespace ckptd

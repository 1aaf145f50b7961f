// Implements the seam of server/comm with NCCL communicators.
#ifndef CKPTD_SERVER_COMM_NCCL_NCCL_COMMS_H_
#define CKPTD_SERVER_COMM_NCCL_NCCL_COMMS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/cuda/device.h"
#include "server/comm/group_comm.h"
#include "server/comm/nccl/communicator.h"
#include "server/comm/nccl/nccl_library.h"

namespace ckptd {

class NcclComms final : public GroupComms {
 public:
  // Returns the GPU whose memory is carried. A communicator keeps it while it lives.
  using Device = std::function<absl::StatusOr<std::shared_ptr<CudaDevice>>()>;
  NcclComms(std::shared_ptr<const NcclLibrary> library, Device device)
      : library_(std::move(library)), device_(std::move(device)) {}

  std::string version() const override { return "NCCL " + library_->VersionText(); }
  absl::StatusOr<std::string> MakeId() override;
  // Further errors: InvalidArgument INVALID_REQUEST for an impossible id or names.
  absl::StatusOr<std::unique_ptr<GroupComm>> Join(GroupCommOptions options,
                                                  GroupComm::Deadline deadline) override;
  void AwaitEnds() override;

 private:
  const std::shared_ptr<const NcclLibrary> library_;
  const Device device_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Communicator>> not_joined_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_NCCL_NCCL_COMMS_H_

#include "server/memory/cuda/slot_tasks.h"

#include <algorithm>

#include "common/base/status.h"

namespace ckptd {

absl::Status SlotTasks::Add(const CudaBytes& memory, const kernels::SourceBlock& block,
                            BlockCopy copy) {
  copy.target += memory.address();
  OfDevice& of = tasks_[memory.device()];
  of.kernels = memory.kernels();
  return kernels::AppendTasks(block, copy, of.tasks);
}

absl::Status SlotTasks::Launch(std::span<std::byte> room, StreamOf stream_of) const {
  for (const auto& [device, of] : tasks_) {
    CKPTD_ASSIGN_OR_RETURN(const CUstream stream, stream_of(device));
    CKPTD_RETURN_IF_ERROR(LaunchOn(of, stream, room));
  }
  return absl::OkStatus();
}

absl::Status SlotTasks::LaunchOn(const OfDevice& of, CUstream stream,
                                 std::span<std::byte>& room) const {
  const size_t per_task = kernels::TableBytes(1);
  const size_t in_table = std::min(of.tasks.size(), room.size() / per_task);
  const std::span tasks(of.tasks);
  if (in_table > 0) {
    CKPTD_ASSIGN_OR_RETURN(const uint32_t tiles, kernels::WriteTable(tasks.first(in_table), room));
    const CudaTaskTable table = {reinterpret_cast<CUdeviceptr>(room.data()),
                                 static_cast<uint32_t>(in_table), tiles};
    constexpr size_t kStep = kernels::kTableAlignment;
    room = room.subspan(std::min((kernels::TableBytes(in_table) + kStep - 1) / kStep * kStep,
                                 room.size()));
    CKPTD_RETURN_IF_ERROR(of.kernels->RunTable(table, stream));
  }
  for (const kernels::CopyTask& task : tasks.subspan(in_table)) {
    CKPTD_RETURN_IF_ERROR(of.kernels->Run(task, stream));
  }
  return absl::OkStatus();
}

}  // namespace ckptd

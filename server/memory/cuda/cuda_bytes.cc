#include "server/memory/cuda/cuda_bytes.h"

#include <algorithm>
#include <cstring>

#include "common/base/status.h"
#include "common/cuda/stream.h"
#include "server/memory/cuda/cuda_lane.h"

namespace ckptd {

absl::Status CudaBytes::Zero(std::span<const SlabSpan> spans) {
  if (spans.empty()) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Make(device()));
  for (const SlabSpan& span : spans) {
    const CudaScope scope(*device());
    CKPTD_RETURN_IF_ERROR(
        device()->Check(device()->driver().MemsetD8Async(address() + span.offset, 0, span.bytes,
                                                         stream.get()),
                        "clearing memory"));
  }
  return stream.Wait(StagingPool::kPatience);
}

absl::StatusOr<std::unique_ptr<StagingLane>> CudaBytes::OpenLane() {
  return std::make_unique<CudaLane>(engine_->Pool());
}

absl::Status CudaBytes::Read(uint64_t offset, std::span<std::byte> out) {
  const std::shared_ptr<StagingPool> pool = engine_->Pool();
  CKPTD_ASSIGN_OR_RETURN(const CudaStream stream, CudaStream::Make(device()));
  CKPTD_ASSIGN_OR_RETURN(StagingPool::Slot* const slot, pool->Take(pool.get()));
  absl::Status status;
  for (size_t done = 0; done < out.size() && status.ok();) {
    const std::span<std::byte> via =
        slot->bytes().first(std::min(out.size() - done, slot->bytes().size()));
    {
      const CudaScope scope(*device());
      status = device()->Check(
          device()->driver().MemcpyDtoHAsync(via.data(), address() + offset + done, via.size(),
                                             stream.get()),
          "reading back");
    }
    if (status.ok()) status = stream.Wait(StagingPool::kPatience);
    if (!status.ok()) break;
    std::memcpy(out.data() + done, via.data(), via.size());
    done += via.size();
  }
  if (!status.ok()) static_cast<void>(pool->Record(*slot, device(), stream.get()));
  pool->Give(slot);
  return status;
}

absl::StatusOr<std::unique_ptr<StagingLane>> UnmappedBytes::OpenLane() {
  return absl::FailedPreconditionError("writing a slab: it is complete");
}

absl::StatusOr<std::shared_ptr<CudaSlabBytes>> UnmappedBytes::Map() {
  MutexLock lock(mutex_);
  if (mapped_ != nullptr) return mapped_;
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaEngine> engine, source_->Get());
  const CudaGpu gpu = engine->home();
  CKPTD_ASSIGN_OR_RETURN(CudaAllocation memory,
                         CudaAllocation::Import(gpu.device, fd_->get(), bytes_, false));
  mapped_ = std::make_shared<CudaSlabBytes>(std::move(engine), gpu, std::move(memory));
  return mapped_;
}

absl::Status UnmappedBytes::Read(uint64_t offset, std::span<std::byte> out) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaSlabBytes> mapped, Map());
  return mapped->Read(offset, out);
}

}  // namespace ckptd

#include "server/memory/cuda/cuda_memory.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/memory/cuda/cuda_bytes.h"
#include "server/memory/cuda/cuda_transit.h"

namespace ckptd {

struct CudaMemory::Ledger {
  Mutex mutex;
  uint64_t next_id ABSL_GUARDED_BY(mutex) = 1;
  uint64_t used ABSL_GUARDED_BY(mutex) = 0;
  // By segment. Null: the memory has no descriptor.
  std::map<uint64_t, std::shared_ptr<const UniqueFd>> owned ABSL_GUARDED_BY(mutex);
};

// How other processes open a slab. Made together with the slab.
struct CudaShare {
  HandleKind kind = HandleKind::kVmmFd;
  std::shared_ptr<const UniqueFd> fd;  // kVmmFd
  std::string ipc_handle;              // kCudaIpc
};

class CudaSlab final : public Slab {
 public:
  CudaSlab(std::shared_ptr<CudaMemory::Ledger> ledger, uint64_t id, uint64_t asked,
           std::shared_ptr<CudaSlabBytes> memory, CudaShare share)
      : ledger_(std::move(ledger)),
        asked_(asked),
        mapped_(std::move(memory)),
        share_(std::move(share)),
        segments_{{.id = id, .bytes = mapped_->bytes()}} {
    MutexLock lock(ledger_->mutex);
    ledger_->used += segments_[0].bytes;
    ledger_->owned[id] = share_.fd;
  }
  ~CudaSlab() override {
    MutexLock lock(ledger_->mutex);
    ledger_->used -= segments_[0].bytes;
    ledger_->owned.erase(segments_[0].id);
  }
  CudaSlab(const CudaSlab&) = delete;
  CudaSlab& operator=(const CudaSlab&) = delete;

  uint64_t bytes() const override { return asked_; }
  const std::vector<Segment>& segments() const override { return segments_; }
  SlabView view() override { return {{}, mapped_ != nullptr ? mapped_ : ViewOfUnmapped()}; }
  HandleKind kind() const override { return share_.kind; }
  std::string ipc_handle() const override { return share_.ipc_handle; }
  const CudaShare& share() const { return share_; }
  // Unmaps the slab. From now on its descriptor keeps the memory, and reading maps it for a
  // while.
  void Unmap(std::shared_ptr<CudaEngineSource> source) {
    source_ = std::move(source);
    mapped_.reset();
  }

  bool sealed = false;
  bool lent_writable = false;

 private:
  // Threads that read at the same time share one mapping.
  std::shared_ptr<StagedMemory> ViewOfUnmapped() {
    std::shared_ptr<StagedMemory> view = unmapped_view_.lock();
    if (view == nullptr) {
      view = std::make_shared<UnmappedBytes>(source_, share_.fd, segments_[0].bytes);
      unmapped_view_ = view;
    }
    return view;
  }

  const std::shared_ptr<CudaMemory::Ledger> ledger_;
  const uint64_t asked_;
  std::shared_ptr<CudaSlabBytes> mapped_;  // null: not mapped
  const CudaShare share_;
  const std::vector<Segment> segments_;
  std::shared_ptr<CudaEngineSource> source_;  // set when not mapped
  std::weak_ptr<StagedMemory> unmapped_view_;
};

namespace {

absl::StatusOr<CudaSlab*> OurSlab(Slab& slab) {
  auto* const ours = dynamic_cast<CudaSlab*>(&slab);
  if (ours == nullptr) return absl::InternalError("a slab of another memory backend");
  return ours;
}

absl::StatusOr<CudaAllocation> Make(const std::shared_ptr<CudaDevice>& device, uint64_t bytes,
                                    HandleKind kind) {
  return kind == HandleKind::kCudaIpc ? CudaAllocation::CreatePlain(device, bytes)
                                      : CudaAllocation::Create(device, bytes);
}

absl::StatusOr<CudaShare> Share(const CudaAllocation& allocation, HandleKind kind) {
  CudaShare share;
  share.kind = kind;
  if (kind == HandleKind::kCudaIpc) {
    CKPTD_ASSIGN_OR_RETURN(share.ipc_handle, allocation.IpcHandle());
  } else {
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, allocation.Export());
    share.fd = std::make_shared<const UniqueFd>(std::move(fd));
  }
  return share;
}

absl::Status NoRoomUnderWork(const std::string& uuid, uint64_t bytes, uint64_t free) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("allocating {} bytes on {}: {} bytes are free, and memory is kept "
                               "for copies that have not ended in time; look at the GPU "
                               "(nvidia-smi, dmesg for Xid), or start this daemon again",
                               bytes, uuid, free),
                   {{"device", uuid}});
}

absl::StatusOr<UniqueFd> Duplicate(const UniqueFd& fd) {
  return DuplicateFd(fd.get(), "duplicating a descriptor of device memory");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Create(std::shared_ptr<CudaDevice> device,
                                                               CudaMemoryOptions options) {
  const CudaEngine::Options engine_options = {options.staging_bytes, options.kernels};
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaEngine> engine,
                         CudaEngine::Start(std::move(device), engine_options));
  const bool has_kernels = engine->home().kernels != nullptr;
  auto source =
      std::make_shared<CudaEngineSource>(engine, engine_options, options.keep_engine);
  return std::unique_ptr<CudaMemory>(new CudaMemory(std::move(source), has_kernels, options));
}

CudaMemory::CudaMemory(std::shared_ptr<CudaEngineSource> source, bool has_kernels,
                       const CudaMemoryOptions& options)
    : source_(std::move(source)),
      has_kernels_(has_kernels),
      budget_(options.budget_bytes),
      ledger_(std::make_shared<Ledger>()) {}

absl::Status CudaMemory::CheckRoom(CudaDevice& device, uint64_t bytes) const {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t free, device.FreeBytes());
  // While that work runs, memory that is freed does not become available, so no checkpoint should
  // be evicted for it.
  if (bytes > free && device.Busy()) return NoRoomUnderWork(source_->info().uuid, bytes, free);
  MutexLock lock(ledger_->mutex);
  const uint64_t left = budget_ - std::min(ledger_->used, budget_);
  if (bytes <= left && bytes <= free) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                   fmt::format("allocating {} bytes on {}: {} bytes of the budget of {} are left, "
                               "{} bytes are free on the GPU; unload a checkpoint, end what else "
                               "uses the GPU, or raise --memory-budget",
                               bytes, source_->info().uuid, left, budget_, free),
                   {{"device", source_->info().uuid},
                    {"asked_bytes", std::to_string(bytes)},
                    {"free_bytes", std::to_string(std::min(left, free))},
                    {"device_free_bytes", std::to_string(free)},
                    {"budget_bytes", std::to_string(budget_)}});
}

absl::StatusOr<std::unique_ptr<Slab>> CudaMemory::Allocate(uint64_t bytes, AttachMode,
                                                           HandleKind kind) {
  if (bytes == 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "allocating device memory: 0 bytes asked; a rank that receives nothing needs "
                     "no slab");
  }
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaEngine> engine, source_->Get());
  const CudaGpu& gpu = engine->home();
  gpu.device->FreeDeferred();
  CKPTD_ASSIGN_OR_RETURN(
      const uint64_t taken,
      CudaAllocation::TakenFor(*gpu.device, bytes, kind == HandleKind::kCudaIpc));
  CKPTD_RETURN_IF_ERROR(CheckRoom(*gpu.device, taken));
  CKPTD_ASSIGN_OR_RETURN(CudaAllocation allocation, Make(gpu.device, bytes, kind));
  CKPTD_ASSIGN_OR_RETURN(CudaShare share, Share(allocation, kind));
  auto memory = std::make_shared<CudaSlabBytes>(engine, gpu, std::move(allocation));
  // New memory may hold old content.
  if (const SlabSpan behind = {bytes, memory->bytes() - bytes}; behind.bytes > 0) {
    CKPTD_RETURN_IF_ERROR(memory->Zero({&behind, 1}));
  }
  uint64_t id = 0;
  {
    MutexLock lock(ledger_->mutex);
    id = ledger_->next_id++;
  }
  return std::make_unique<CudaSlab>(ledger_, id, bytes, std::move(memory), std::move(share));
}

absl::StatusOr<std::unique_ptr<TransitMemory>> CudaMemory::MakeTransit() {
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaEngine> engine, source_->Get());
  return std::make_unique<CudaTransit>(
      std::move(engine), [this](uint64_t bytes) { return Allocate(bytes, AttachMode::kExclusive); });
}

void CudaMemory::ReleaseStaging(Slab& slab) {
  auto* const ours = dynamic_cast<CudaSlab*>(&slab);
  if (ours == nullptr || source_->keeps() || ours->share().fd == nullptr) return;
  ours->Unmap(source_);
}

absl::Status CudaMemory::Seal(Slab& slab) {
  CKPTD_ASSIGN_OR_RETURN(CudaSlab* const ours, OurSlab(slab));
  if (ours->lent_writable) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                     "sealing a slab: it was handed out EXCLUSIVE, its content is the client's; "
                     "load the checkpoint again");
  }
  ours->sealed = true;
  return absl::OkStatus();
}

absl::StatusOr<SlabHandle> CudaMemory::Export(Slab& slab, AttachMode mode) {
  CKPTD_ASSIGN_OR_RETURN(CudaSlab* const ours, OurSlab(slab));
  const bool exclusive = mode == AttachMode::kExclusive;
  if (exclusive && ours->kind() == HandleKind::kCudaIpc) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     "handing over a slab EXCLUSIVE: memory handed out as CUDA_IPC stays this "
                     "daemon's; load the checkpoint as VMM_FD, or acquire it PRIVATE");
  }
  if (exclusive && ours->sealed) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kExclusiveNeedsCopy,
                     "handing over a slab EXCLUSIVE: it is sealed for readers; load the "
                     "checkpoint for EXCLUSIVE, or acquire it PRIVATE");
  }
  if (!exclusive && !ours->sealed) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotActive,
                     "handing out a slab for reading: it is not sealed yet");
  }
  SlabHandle handle;
  handle.kind = ours->kind();
  handle.device = source_->info().uuid;
  handle.writable = exclusive;
  handle.ipc_handle = ours->ipc_handle();
  if (ours->share().fd != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(handle.fds.emplace_back(), Duplicate(*ours->share().fd));
  }
  handle.segment_bytes.push_back(ours->segments()[0].bytes);
  ours->lent_writable = ours->lent_writable || exclusive;
  return handle;
}

// The client's descriptor keeps the memory. Ours is closed with the slab.
void CudaMemory::TransferOwnership(std::unique_ptr<Slab> slab) { slab.reset(); }

absl::StatusOr<KeptSlab> CudaMemory::Keep(Slab& slab) {
  CKPTD_ASSIGN_OR_RETURN(CudaSlab* const ours, OurSlab(slab));
  if (ours->share().fd == nullptr) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     "keeping a slab: CUDA_IPC memory ends with its daemon; load the checkpoint as "
                     "VMM_FD to keep it");
  }
  KeptSlab kept{.kind = ours->kind(), .device = source_->info().uuid, .bytes = slab.bytes(),
                .sealed = ours->sealed};
  CKPTD_ASSIGN_OR_RETURN(kept.fds.emplace_back(), Duplicate(*ours->share().fd));
  kept.segment_bytes.push_back(ours->segments()[0].bytes);
  return kept;
}

absl::StatusOr<std::unique_ptr<Slab>> CudaMemory::Adopt(KeptSlab kept) {
  if (kept.kind != HandleKind::kVmmFd || kept.fds.size() != 1 || kept.segment_bytes.size() != 1 ||
      kept.segment_bytes[0] < kept.bytes) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                     "taking kept memory over: it is no slab of a GPU's memory");
  }
  if (kept.device != source_->info().uuid) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDevice,
                     fmt::format("taking kept memory over: it is on {}, this daemon has {}; give it "
                                 "that GPU again (--device)",
                                 kept.device, source_->info().uuid));
  }
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaEngine> engine, source_->Get());
  const CudaGpu& gpu = engine->home();
  CKPTD_ASSIGN_OR_RETURN(CudaAllocation allocation,
                         CudaAllocation::Import(gpu.device, kept.fds[0].get(),
                                                kept.segment_bytes[0], true));
  uint64_t id = 0;
  {
    MutexLock lock(ledger_->mutex);
    const uint64_t left = budget_ - std::min(ledger_->used, budget_);
    if (kept.segment_bytes[0] > left) {
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                       fmt::format("taking {} kept bytes on {} over: {} bytes of the budget of {} "
                                   "are left; raise --memory-budget",
                                   kept.segment_bytes[0], kept.device, left, budget_));
    }
    id = ledger_->next_id++;
  }
  CudaShare share;
  share.fd = std::make_shared<const UniqueFd>(std::move(kept.fds[0]));
  auto memory = std::make_shared<CudaSlabBytes>(std::move(engine), gpu, std::move(allocation));
  auto slab = std::make_unique<CudaSlab>(ledger_, id, kept.bytes, std::move(memory), std::move(share));
  slab->sealed = kept.sealed;
  return slab;
}

std::vector<uint64_t> CudaMemory::OwnedSegments() const {
  MutexLock lock(ledger_->mutex);
  std::vector<uint64_t> ids;
  for (const auto& [id, fd] : ledger_->owned) ids.push_back(id);
  return ids;
}

MemoryUsage CudaMemory::Usage() const {
  MemoryUsage usage;
  usage.budget = budget_;
  const std::shared_ptr<CudaEngine> engine = source_->Running();
  usage.staging = engine == nullptr ? 0 : engine->CurrentPool()->bytes();
  MutexLock lock(ledger_->mutex);
  usage.used = ledger_->used;
  return usage;
}

std::string CudaMemory::tier() const {
  const int version = source_->driver().version;
  return fmt::format("cuda ({}, {}, driver for CUDA {}.{}, budget {:.1f} GB, {}, {})",
                     source_->info().uuid, source_->info().name, version / 1000,
                     version % 1000 / 10, static_cast<double>(budget_) / 1e9,
                     has_kernels_ ? "copy kernels" : "no copy kernels",
                     source_->Running() != nullptr ? "context kept" : "at rest");
}

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaMemory::Device() const {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<CudaEngine> engine, source_->Get());
  return engine->home().device;
}

absl::StatusOr<UniqueFd> CudaMemory::SegmentFd(uint64_t segment_id) const {
  std::shared_ptr<const UniqueFd> shared;
  bool owned = false;
  {
    MutexLock lock(ledger_->mutex);
    const auto at = ledger_->owned.find(segment_id);
    owned = at != ledger_->owned.end();
    if (owned) shared = at->second;
  }
  if (shared != nullptr) return Duplicate(*shared);
  if (owned) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                     fmt::format("handing out device memory: segment {} is for CUDA_IPC and has no "
                                 "descriptor; its bytes are sent instead",
                                 segment_id));
  }
  return MakeError(absl::StatusCode::kNotFound, reason::kInvalidRequest,
                   fmt::format("handing out device memory: segment {} is not owned here",
                               segment_id));
}

absl::StatusOr<std::shared_ptr<StagedMemory>> CudaMemory::ImportPeer(
    const std::string& device_uuid, const UniqueFd& fd, uint64_t bytes) {
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<CudaEngine> engine, source_->Get());
  CKPTD_ASSIGN_OR_RETURN(const CudaGpu gpu, engine->GpuOf(device_uuid));
  gpu.device->FreeDeferred();
  CKPTD_ASSIGN_OR_RETURN(CudaAllocation memory,
                         CudaAllocation::Import(gpu.device, fd.get(), bytes, true));
  return std::make_shared<CudaSlabBytes>(std::move(engine), gpu, std::move(memory));
}

}  // namespace ckptd

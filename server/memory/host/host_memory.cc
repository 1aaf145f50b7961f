#include "server/memory/host/host_memory.h"

#include <utility>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "fmt/format.h"
#include "server/memory/host/available_memory.h"

namespace ckptd {
namespace {

class HostSlab final : public Slab {
 public:
  HostSlab(std::shared_ptr<Arena> arena, uint64_t bytes, std::vector<ArenaPiece> pieces)
      : arena_(std::move(arena)), bytes_(bytes), pieces_(std::move(pieces)) {
    for (const ArenaPiece& piece : pieces_) {
      segments_.push_back({.id = piece.segment->id(), .bytes = piece.bytes});
      view_.segments.emplace_back(piece.segment->data(), piece.bytes);
    }
  }
  ~HostSlab() override { arena_->Return(std::move(pieces_)); }
  HostSlab(const HostSlab&) = delete;
  HostSlab& operator=(const HostSlab&) = delete;

  uint64_t bytes() const override { return bytes_; }
  const std::vector<Segment>& segments() const override { return segments_; }
  SlabView view() override { return view_; }
  HandleKind kind() const override { return HandleKind::kMemfd; }
  std::vector<ArenaPiece>& pieces() { return pieces_; }

 private:
  std::shared_ptr<Arena> arena_;
  uint64_t bytes_;
  std::vector<ArenaPiece> pieces_;
  std::vector<Segment> segments_;
  SlabView view_;
};

absl::StatusOr<HostSlab*> OurSlab(Slab& slab) {
  auto* const ours = dynamic_cast<HostSlab*>(&slab);
  if (ours == nullptr) return absl::InternalError("a slab of another memory backend");
  return ours;
}

absl::Status BadOption(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   "setting up host memory: " + message);
}

absl::StatusOr<UniqueFd> OpenFor(const ArenaPiece& piece, AttachMode mode) {
  return mode == AttachMode::kExclusive ? piece.segment->OpenReadWrite()
                                        : piece.segment->OpenReadOnly();
}

absl::Status CheckSeals(const std::vector<ArenaPiece>& pieces, AttachMode mode) {
  for (const ArenaPiece& piece : pieces) {
    if (mode == AttachMode::kExclusive && piece.segment->sealed()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kExclusiveNeedsCopy,
                       "handing over a slab EXCLUSIVE: it is sealed for readers; load the "
                       "checkpoint for EXCLUSIVE, or acquire it PRIVATE");
    }
    if (mode != AttachMode::kExclusive && !piece.segment->sealed()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotActive,
                       "handing out a slab for reading: it is not sealed yet");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::Create(HostMemoryOptions options) {
  if (options.segment_bytes == 0 || options.segment_bytes % kHugePageBytes != 0) {
    return BadOption(fmt::format("segments of {} bytes; choose a multiple of {} (2 MiB)",
                                 options.segment_bytes, kHugePageBytes));
  }
  if (options.budget_bytes < kHugePageBytes) {
    return BadOption(fmt::format("a budget of {} bytes; the least is {} (2 MiB)",
                                 options.budget_bytes, kHugePageBytes));
  }
  if (options.available_memory == nullptr) {
    options.available_memory = [] { return AvailableMemory(); };
    options.memory_levels = [] { return MemoryLevels(); };
  }
  if (!options.fill_reserve_bytes.has_value()) {
    options.fill_reserve_bytes = TotalMemory().value_or(0) / 10;
  }
  auto arena = std::make_shared<Arena>(std::move(options));
  CKPTD_RETURN_IF_ERROR(arena->StartFilling());
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(arena)));
}

HostMemory::~HostMemory() { arena_->StopFilling(); }

absl::StatusOr<std::unique_ptr<Slab>> HostMemory::Allocate(uint64_t bytes, AttachMode intended,
                                                           HandleKind) {
  if (bytes == 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "allocating host memory: 0 bytes asked; a rank that receives nothing needs "
                     "no slab");
  }
  CKPTD_ASSIGN_OR_RETURN(std::vector<ArenaPiece> pieces,
                         arena_->Take(bytes, intended == AttachMode::kExclusive));
  return std::make_unique<HostSlab>(arena_, bytes, std::move(pieces));
}

void HostMemory::ReleaseStaging(Slab& slab) {
  const absl::StatusOr<HostSlab*> ours = OurSlab(slab);
  if (!ours.ok()) return;
  std::vector<ArenaPiece>& pieces = (*ours)->pieces();
  if (pieces.empty() || !pieces.front().filling) return;
  for (ArenaPiece& piece : pieces) piece.filling = false;
  arena_->NoteFilled(slab.bytes());
}

absl::Status HostMemory::Seal(Slab& slab) {
  CKPTD_ASSIGN_OR_RETURN(HostSlab* const ours, OurSlab(slab));
  for (ArenaPiece& piece : ours->pieces()) {
    if (piece.lent_writable) {
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                       "sealing a slab: it was handed out EXCLUSIVE, its content is the client's; "
                       "load the checkpoint again");
    }
    CKPTD_RETURN_IF_ERROR(piece.segment->Seal());
  }
  return absl::OkStatus();
}

absl::StatusOr<SlabHandle> HostMemory::Export(Slab& slab, AttachMode mode) {
  CKPTD_ASSIGN_OR_RETURN(HostSlab* const ours, OurSlab(slab));
  CKPTD_RETURN_IF_ERROR(CheckSeals(ours->pieces(), mode));
  SlabHandle handle;
  handle.writable = mode == AttachMode::kExclusive;
  for (ArenaPiece& piece : ours->pieces()) {
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenFor(piece, mode));
    handle.fds.push_back(std::move(fd));
    handle.segment_bytes.push_back(piece.bytes);
  }
  for (ArenaPiece& piece : ours->pieces()) {  // either all pieces are lent or none
    piece.lent = true;
    piece.lent_writable = piece.lent_writable || handle.writable;
  }
  return handle;
}

void HostMemory::TransferOwnership(std::unique_ptr<Slab> slab) {
  if (slab == nullptr) return;
  const absl::StatusOr<HostSlab*> ours = OurSlab(*slab);
  if (ours.ok()) arena_->Forget(std::exchange((*ours)->pieces(), {}));
}

absl::StatusOr<KeptSlab> HostMemory::Keep(Slab& slab) {
  CKPTD_ASSIGN_OR_RETURN(HostSlab* const ours, OurSlab(slab));
  KeptSlab kept{.bytes = slab.bytes(), .sealed = true};
  for (const ArenaPiece& piece : ours->pieces()) {
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, piece.segment->DuplicateOriginal());
    kept.fds.push_back(std::move(fd));
    kept.segment_bytes.push_back(piece.bytes);
    kept.sealed = kept.sealed && piece.segment->sealed();
  }
  return kept;
}

absl::StatusOr<std::unique_ptr<Slab>> HostMemory::Adopt(KeptSlab kept) {
  const uint64_t bytes = kept.bytes;
  CKPTD_ASSIGN_OR_RETURN(std::vector<ArenaPiece> pieces, arena_->Adopt(std::move(kept)));
  return std::make_unique<HostSlab>(arena_, bytes, std::move(pieces));
}

void HostMemory::OnWriterRestart() { arena_->OnWriterRestart(); }

std::vector<uint64_t> HostMemory::OwnedSegments() const { return arena_->Ids(); }

MemoryUsage HostMemory::Usage() const { return arena_->Usage(); }

std::string HostMemory::tier() const {
  const std::optional<unsigned> node = arena_->options().numa_node;
  return fmt::format("host ({} segments of {} MiB, budget {:.1f} GB{}{}{})",
                     arena_->options().folder.empty() ? "memfd" : "file",
                     arena_->options().segment_bytes >> 20,
                     static_cast<double>(arena_->options().budget_bytes) / 1e9,
                     arena_->options().huge_pages ? ", huge pages where possible" : "",
                     node.has_value() ? fmt::format(", on NUMA node {}", *node) : "",
                     arena_->ownership_check_works()
                         ? ""
                         : ", no write leases here: memory that was handed out is never reused");
}

absl::StatusOr<UniqueFd> HostMemory::OriginalFd(uint64_t segment_id) const {
  return arena_->DuplicateOriginal(segment_id);
}

bool HostMemory::WaitUntilFilled(std::chrono::steady_clock::time_point deadline) {
  return arena_->WaitUntilFilled(deadline);
}

}  // namespace ckptd

#include "server/catalog/shard_memory.h"

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

absl::Status ShardMemory::SealLocked() {
  if (sealed_ || slab() == nullptr) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(backend_.Seal(*slab_));
  sealed_ = true;
  return absl::OkStatus();
}

void ShardMemory::ReleaseStaging() {
  std::shared_ptr<void> filler;  // destroyed after the lock
  MutexLock lock(mutex_);
  filler = std::move(filler_);
  if (slab() != nullptr) backend_.ReleaseStaging(*slab_);
}

void ShardMemory::FilledBy(std::shared_ptr<void> filler) {
  MutexLock lock(mutex_);
  filler_ = std::move(filler);
}

absl::Status ShardMemory::Seal() {
  MutexLock lock(mutex_);
  return SealLocked();
}

bool ShardMemory::sealed() const {
  MutexLock lock(mutex_);
  return sealed_;
}

absl::StatusOr<KeptSlab> ShardMemory::Keep() {
  MutexLock lock(mutex_);
  if (slab() == nullptr) return KeptSlab{.kind = kind_, .sealed = sealed_};
  return backend_.Keep(*slab_);
}

void ShardMemory::SetBeforeReuse(std::function<void()> before_reuse) {
  MutexLock lock(mutex_);
  before_reuse_ = std::move(before_reuse);
}

void ShardMemory::StopKeeping() {
  std::function<void()> before_reuse;
  {
    MutexLock lock(mutex_);
    before_reuse = std::exchange(before_reuse_, nullptr);
  }
  if (before_reuse != nullptr) before_reuse();
}

absl::StatusOr<SlabHandle> ShardMemory::Export(AttachMode mode) {
  if (mode == AttachMode::kExclusive && !sealed()) StopKeeping();
  MutexLock lock(mutex_);
  if (slab() == nullptr) return SlabHandle{};
  if (mode != AttachMode::kExclusive) {
    CKPTD_RETURN_IF_ERROR(SealLocked());
  } else if (sealed_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kExclusiveNeedsCopy,
                     "handing the shard over EXCLUSIVE: its memory is sealed because it was loaded "
                     "for, or lent to, readers; load it with intended mode EXCLUSIVE, or acquire "
                     "it PRIVATE");
  }
  return backend_.Export(*slab_, mode);
}

void ShardMemory::TransferOwnership() {
  StopKeeping();
  MutexLock lock(mutex_);
  given_up_ = true;
  if (readers_ == 0 && slab_ != nullptr) backend_.TransferOwnership(std::move(slab_));
}

bool ShardMemory::GivenUp() const {
  MutexLock lock(mutex_);
  return given_up_;
}

std::shared_ptr<const SlabView> ShardMemory::Read() {
  MutexLock lock(mutex_);
  if (given_up_) return nullptr;
  ++readers_;
  auto view = slab_ == nullptr ? std::make_unique<SlabView>() : std::make_unique<SlabView>(slab_->view());
  return {view.release(), [this](const SlabView* held) {
            delete held;
            EndRead();
          }};
}

void ShardMemory::EndRead() {
  MutexLock lock(mutex_);
  if (--readers_ == 0 && given_up_ && slab_ != nullptr) backend_.TransferOwnership(std::move(slab_));
}

SlabView ShardMemory::View() const {
  MutexLock lock(mutex_);
  return slab() == nullptr ? SlabView() : slab_->view();
}

std::string ShardMemory::ipc_handle() const {
  MutexLock lock(mutex_);
  return slab() == nullptr ? std::string() : slab_->ipc_handle();
}

std::vector<Segment> ShardMemory::Segments() const {
  MutexLock lock(mutex_);
  return slab() == nullptr ? std::vector<Segment>() : slab_->segments();
}

}  // namespace ckptd

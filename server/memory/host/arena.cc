#include "server/memory/host/arena.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "fmt/format.h"

namespace ckptd {
namespace {

// How long an allocation waits for the segment that the fill thread is making. That takes well
// under a second.
constexpr auto kFillPatience = std::chrono::seconds(30);

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

unsigned DefaultThreads() { return std::clamp(std::thread::hardware_concurrency(), 1U, 8U); }

HostMemoryOptions WithDefaults(HostMemoryOptions options) {
  if (options.populate_threads == 0) options.populate_threads = DefaultThreads();
  if (options.automatic.has_value() && !options.automatic->pressure_bytes.has_value()) {
    options.automatic->pressure_bytes = options.fill_reserve_bytes.value_or(0) / 2;
  }
  return options;
}

MemoryClaims::Levels LevelsOf(const MemoryClaims::Available& available,
                              const MemoryClaims::Levels& levels) {
  return levels == nullptr ? MemoryClaims::OfMachine(available) : levels;
}

}  // namespace

Arena::Arena(HostMemoryOptions options)
    : options_(WithDefaults(std::move(options))),
      claims_(options_.claims_path, options_.claims_holder,
              LevelsOf(options_.available_memory, options_.memory_levels)),
      ownership_check_works_(options_.ownership_check && OwnershipCheckWorks(options_.folder)),
      last_use_(std::chrono::steady_clock::now()) {
  MutexLock lock(mutex_);
  SetTarget(options_.arena_target_bytes, options_.arena_why);
}

Arena::~Arena() { StopFilling(); }

// A slab is whole segments and a shorter last one. A free segment serves as the last one if it
// wastes little, or if it is a whole one of which at least a quarter is used: faulted memory is
// worth more than the wasted rest.
bool Arena::PickOne(ArenaPiece& piece, bool unsealed_only) {
  const uint64_t need = RoundUp(piece.bytes);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const uint64_t size = it->segment->bytes();
    const bool little_waste = size <= need + std::max(need / 4, kHugePageBytes);
    const bool whole = size == options_.segment_bytes && need >= size / 4;
    if (size < need || !(little_waste || whole)) continue;
    if (unsealed_only && it->segment->sealed()) continue;
    // Unsealed memory is scarcer, because EXCLUSIVE needs it, so sealed memory is preferred.
    const auto rank = [](const ArenaPiece& p) {
      return std::pair(p.segment->bytes(), p.segment->sealed() ? 0 : 1);
    };
    if (best == free_.end() || rank(*it) < rank(*best)) best = it;
  }
  if (best == free_.end()) return false;
  const uint64_t bytes = piece.bytes;
  piece = std::move(*best);
  piece.bytes = bytes;
  free_.erase(best);
  piece.writer_generation = writer_generation_;
  used_ += piece.segment->bytes();
  return true;
}

Arena::Draft Arena::Pick(uint64_t bytes, bool unsealed_only) {
  Draft draft;
  for (uint64_t left = bytes; left > 0;) {
    ArenaPiece piece;
    piece.bytes = std::min(left, options_.segment_bytes);
    left -= piece.bytes;
    const uint64_t need = RoundUp(piece.bytes);
    const bool found = PickOne(piece, unsealed_only);
    draft.capacity.push_back(found ? 0 : need);
    draft.fresh += draft.capacity.back();
    draft.pieces.push_back(std::move(piece));
  }
  return draft;
}

void Arena::PutBack(Draft& draft) {
  for (ArenaPiece& piece : draft.pieces) {
    if (piece.segment == nullptr) continue;
    used_ -= piece.segment->bytes();
    free_.push_back(std::move(piece));
  }
  draft = Draft();
}

uint64_t Arena::Held() const {
  uint64_t held = pending_ + filling_;
  for (const auto& [id, segment] : owned_) held += segment->bytes();
  return held;
}

void Arena::MarkForRelease(ArenaPiece piece, Pieces& to_release) {
  owned_.erase(piece.segment->id());
  to_release.push_back(std::move(piece));
}

// Takes free segments out of the pool, oldest first, until `bytes` are gained.
void Arena::TrimFree(uint64_t bytes, Pieces& to_release) {
  uint64_t gained = 0;
  while (gained < bytes && !free_.empty()) {
    gained += free_.front().segment->bytes();
    MarkForRelease(std::move(free_.front()), to_release);
    free_.erase(free_.begin());
  }
}

// Makes the fresh part of `draft` fit the budget. Checks first whether it can, before anything is
// released.
absl::Status Arena::MakeRoom(uint64_t asked, const Draft& draft, Pieces& to_release) {
  const uint64_t committed = used_ + pending_ + filling_;
  if (committed > options_.budget_bytes || draft.fresh > options_.budget_bytes - committed) {
    uint64_t others = committed;
    for (const ArenaPiece& piece : draft.pieces) {
      if (piece.segment != nullptr) others -= piece.segment->bytes();
    }
    return NoMemory(asked, options_.budget_bytes - std::min(options_.budget_bytes, others),
                    "its budget does not allow it; unload checkpoints or raise the budget");
  }
  const auto excess = [this, &draft]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t wanted = Held() + draft.fresh;
    return wanted - std::min(wanted, options_.budget_bytes);
  };
  TrimFree(excess(), to_release);
  while (excess() > 0 && !lingering_.empty()) {
    MarkForRelease(std::move(lingering_.front()), to_release);
    lingering_.erase(lingering_.begin());
  }
  return absl::OkStatus();
}

// Waits for the fill's current segment, if it could serve this slab. The fill thread makes no
// other segment meanwhile: it would take the lock again before the threads that it has woken. It
// runs at low priority, so this thread helps to make the segment.
Arena::Draft Arena::PickAfterFill(uint64_t bytes, bool unsealed_only) {
  Draft draft;
  bool picked = false;
  std::shared_ptr<PopulateWork> joined;
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    draft = Pick(bytes, unsealed_only);
    picked = draft.fresh == 0 || filling_ == 0;
    if (!picked) PutBack(draft);
    return picked || (filling_work_ != nullptr && filling_work_ != joined);
  };
  last_use_ = std::chrono::steady_clock::now();
  ++waiting_;
  const auto deadline = last_use_ + kFillPatience;
  while (changed_.WaitUntil(mutex_, deadline, ready) && !picked) {
    joined = filling_work_;
    mutex_.Unlock();
    joined->Join(options_.populate_threads);
    mutex_.Lock();
  }
  if (!picked) draft = Pick(bytes, unsealed_only);
  --waiting_;
  return draft;
}

absl::StatusOr<Arena::Draft> Arena::Reserve(uint64_t bytes, bool unsealed_only) {
  Pieces to_release;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (bytes > options_.budget_bytes) {
    const uint64_t committed = std::min(options_.budget_bytes, used_ + pending_);
    return NoMemory(bytes, options_.budget_bytes - committed,
                    "more than its whole budget; raise the budget or use more ranks");
  }
  ReapLingering(to_release);
  Draft draft = PickAfterFill(bytes, unsealed_only);
  if (const absl::Status room = MakeRoom(bytes, draft, to_release); !room.ok()) {
    PutBack(draft);
    return room;
  }
  pending_ += draft.fresh;
  return draft;
}

absl::Status Arena::MakeFresh(Draft& draft, MemoryClaim claim) {
  uint64_t left = draft.fresh;
  for (size_t i = 0; i < draft.pieces.size(); ++i) {
    if (draft.capacity[i] == 0) continue;
    ArenaPiece& piece = draft.pieces[i];
    CKPTD_ASSIGN_OR_RETURN(piece.segment,
                           MakeSegment(draft.capacity[i], options_.populate_threads, nullptr));
    claim.Lower(left -= draft.capacity[i]);
  }
  return absl::OkStatus();
}

void Arena::CancelTake(Draft draft) {
  Pieces to_release;
  {
    MutexLock lock(mutex_);
    pending_ -= draft.fresh;
    for (size_t i = 0; i < draft.pieces.size(); ++i) {
      if (draft.capacity[i] > 0) to_release.push_back(std::move(draft.pieces[i]));
    }
    PutBack(draft);
  }
  changed_.NotifyAll();
}

absl::Status Arena::TakeFresh(uint64_t asked, Draft& draft) {
  absl::StatusOr<MemoryClaim> claim = ClaimFresh(asked, draft.fresh);
  absl::Status made = claim.status();
  if (made.ok()) made = MakeFresh(draft, *std::move(claim));
  if (!made.ok()) {
    CancelTake(std::move(draft));
    return made;
  }
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < draft.pieces.size(); ++i) {
      if (draft.capacity[i] == 0) continue;
      const HostSegment* segment = draft.pieces[i].segment.get();
      owned_[segment->id()] = segment;
      draft.pieces[i].writer_generation = writer_generation_;
    }
    pending_ -= draft.fresh;
    used_ += draft.fresh;
    transferred_ -= std::min(transferred_, draft.fresh);
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ArenaPiece>> Arena::Take(uint64_t bytes, bool unsealed_only) {
  absl::StatusOr<Draft> reserved = Reserve(bytes, unsealed_only);
  // The fill waits while a load waits, even if that load then fails.
  changed_.NotifyAll();
  if (!reserved.ok()) return reserved.status();
  Draft draft = *std::move(reserved);
  if (draft.fresh > 0) CKPTD_RETURN_IF_ERROR(TakeFresh(bytes, draft));
  {
    MutexLock lock(mutex_);
    ++loading_;
    YieldFill();
  }
  for (ArenaPiece& piece : draft.pieces) {
    // A client could map the whole segment, so no byte of an earlier checkpoint may remain after
    // the slab's own bytes.
    if (piece.dirty_bytes > piece.bytes) {
      std::memset(piece.segment->data() + piece.bytes, 0, piece.dirty_bytes - piece.bytes);
    }
    piece.dirty_bytes = piece.bytes;
    piece.filling = true;
  }
  return std::move(draft.pieces);
}

absl::StatusOr<std::vector<ArenaPiece>> Arena::Adopt(KeptSlab kept) {
  const uint64_t sum = std::accumulate(kept.segment_bytes.begin(), kept.segment_bytes.end(), uint64_t{0});
  if (kept.kind != HandleKind::kMemfd || kept.fds.size() != kept.segment_bytes.size() ||
      sum != kept.bytes) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                     fmt::format("taking kept memory over: {} descriptors came for {} segments of {} "
                                 "bytes, which is no slab of {} bytes of host memory",
                                 kept.fds.size(), kept.segment_bytes.size(), sum, kept.bytes));
  }
  Pieces pieces;
  uint64_t held = 0;
  for (size_t i = 0; i < kept.fds.size(); ++i) {
    uint64_t id = 0;
    {
      MutexLock lock(mutex_);
      id = next_id_++;
    }
    ArenaPiece piece;
    piece.bytes = kept.segment_bytes[i];
    CKPTD_ASSIGN_OR_RETURN(piece.segment, HostSegment::Adopt(id, piece.bytes, std::move(kept.fds[i]),
                                                             options_.folder));
    piece.dirty_bytes = piece.bytes;
    piece.writer_generation = ArenaPiece::kNoWriter;
    piece.lent = piece.segment->sealed();  // clients of that process may map it yet
    held += piece.segment->bytes();
    pieces.push_back(std::move(piece));
  }
  MutexLock lock(mutex_);
  const uint64_t committed = std::min(options_.budget_bytes, used_ + pending_ + filling_);
  if (held > options_.budget_bytes - committed) {
    return NoMemory(kept.bytes, options_.budget_bytes - committed,
                    "its budget is smaller than what was kept; raise the budget");
  }
  for (const ArenaPiece& piece : pieces) owned_[piece.segment->id()] = piece.segment.get();
  used_ += held;
  return pieces;
}

Arena::Disposition Arena::DispositionOf(const ArenaPiece& piece) const {
  if (piece.filling && options_.filled_by_peers) return Disposition::kDrop;
  const bool stale = piece.segment->sealed() && piece.writer_generation != writer_generation_;
  if (!piece.lent) return stale ? Disposition::kDrop : Disposition::kFree;
  if (!ownership_check_works_) return Disposition::kDrop;
  if (piece.segment->HeldByOthers()) return Disposition::kLinger;
  return stale || piece.lent_writable ? Disposition::kDrop : Disposition::kFree;
}

void Arena::Dispose(ArenaPiece piece, Pieces& to_release) {
  switch (DispositionOf(piece)) {
    case Disposition::kFree:
      piece.lent = piece.filling = false;
      free_.push_back(std::move(piece));
      break;
    case Disposition::kLinger:
      lingering_.push_back(std::move(piece));
      break;
    case Disposition::kDrop:
      MarkForRelease(std::move(piece), to_release);
      break;
  }
}

void Arena::ReapLingering(Pieces& to_release) {
  for (ArenaPiece& piece : std::exchange(lingering_, {})) Dispose(std::move(piece), to_release);
}

void Arena::Return(std::vector<ArenaPiece> pieces) {
  Pieces to_release;
  {
    MutexLock lock(mutex_);
    if (!pieces.empty() && pieces.front().filling) --loading_;
    for (ArenaPiece& piece : pieces) {
      used_ -= piece.segment->bytes();
      Dispose(std::move(piece), to_release);
    }
    fill_stalled_ = false;
    last_use_ = std::chrono::steady_clock::now();
  }
  changed_.NotifyAll();
}

void Arena::Forget(std::vector<ArenaPiece> pieces) {
  Pieces to_release;
  {
    MutexLock lock(mutex_);
    if (!pieces.empty() && pieces.front().filling) --loading_;
    for (ArenaPiece& piece : pieces) {
      used_ -= piece.segment->bytes();
      transferred_ = std::min(transferred_ + piece.segment->bytes(), target_);
      MarkForRelease(std::move(piece), to_release);
    }
    fill_stalled_ = false;
  }
  changed_.NotifyAll();
}

void Arena::OnWriterRestart() {
  Pieces to_release;
  {
    MutexLock lock(mutex_);
    ++writer_generation_;
    for (ArenaPiece& piece : std::exchange(free_, {})) Dispose(std::move(piece), to_release);
    fill_stalled_ = false;
  }
  changed_.NotifyAll();
}

}  // namespace ckptd

#include "server/load/load_state.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

struct Row {
  LoadState state;
  std::string_view name;
  Stage stage;
  uint32_t followers;
};

constexpr uint32_t Bit(LoadState state) { return uint32_t{1} << static_cast<uint32_t>(state); }

template <typename... States>
constexpr uint32_t To(States... states) {
  return (Bit(states) | ... | 0u);
}

using enum LoadState;

// The one table of states, in the order of LoadState.
constexpr std::array<Row, kLoadStates> kTable = {{
    {kGathering, "GATHERING", Stage::kGathering, To(kQueued, kFailed, kCancelled)},
    {kWaitingForMemory, "WAITING_FOR_MEMORY", Stage::kWaitingForMemory,
     To(kGathering, kFailed, kCancelled)},
    // Back to kGathering: a rank has lost the shard that it was taken to hold.
    {kQueued, "QUEUED", Stage::kQueued, To(kOpening, kGathering, kFailed, kCancelled)},
    {kOpening, "OPENING", Stage::kOpening, To(kPlanning, kFailed, kCancelled)},
    {kPlanning, "PLANNING", Stage::kPlanning, To(kAllocating, kFailed, kCancelled)},
    // Straight to kPublishing: every rank had its shard, or found it in its host tier.
    {kAllocating, "ALLOCATING", Stage::kAllocating,
     To(kTransferring, kPublishing, kWaitingForMemory, kFailed, kCancelled)},
    {kTransferring, "TRANSFERRING", Stage::kTransferring, To(kPublishing, kFailed, kCancelled)},
    {kPublishing, "PUBLISHING", Stage::kPublishing, To(kActive, kFailed)},
    {kActive, "ACTIVE", Stage::kUnspecified, To()},
    {kFailed, "FAILED", Stage::kUnspecified, To()},
    {kCancelled, "CANCELLED", Stage::kUnspecified, To()},
}};

constexpr bool RowsAreInOrder() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].state) != i) return false;
  }
  return true;
}
static_assert(RowsAreInOrder());

const Row& RowOf(LoadState state) { return kTable[static_cast<size_t>(state)]; }

}  // namespace

std::string_view NameOf(LoadState state) { return RowOf(state).name; }

bool IsLegal(LoadState from, LoadState to) { return (RowOf(from).followers & Bit(to)) != 0; }

bool IsFinal(LoadState state) { return RowOf(state).followers == 0; }

bool IsWaiting(LoadState state) {
  return state == LoadState::kGathering || state == LoadState::kWaitingForMemory;
}

Stage StageOf(LoadState state) { return RowOf(state).stage; }

absl::Status LoadStateMachine::Enter(LoadState to) {
  if (state_ == LoadState::kCancelled) return why_;
  if (!IsLegal(state_, to)) {
    return MakeError(absl::StatusCode::kInternal, reason::kIllegalState,
                     fmt::format("loading: the load is {}, and {} cannot follow; report this as a "
                                 "fault of ckptd, then load again",
                                 NameOf(state_), NameOf(to)));
  }
  state_ = to;
  return absl::OkStatus();
}

bool LoadStateMachine::Take() {
  MutexLock lock(mutex_);
  has_runner_ = Enter(LoadState::kQueued).ok();
  return has_runner_;
}

void LoadStateMachine::Requeue(LoadState to) {
  MutexLock lock(mutex_);
  has_runner_ = false;
  Enter(to).IgnoreError();  // it was cancelled
}

absl::Status LoadStateMachine::Advance(LoadState to) {
  {
    MutexLock lock(mutex_);
    CKPTD_RETURN_IF_ERROR(Enter(to));
  }
  if (changed_) changed_();
  return absl::OkStatus();
}

void LoadStateMachine::Fail() {
  {
    MutexLock lock(mutex_);
    if (!IsLegal(state_, LoadState::kFailed)) return;
    state_ = LoadState::kFailed;
  }
  if (changed_) changed_();
}

std::optional<LoadState> LoadStateMachine::Cancel(const absl::Status& why) {
  MutexLock lock(mutex_);
  if (!IsLegal(state_, LoadState::kCancelled)) return std::nullopt;
  why_ = why;
  return std::exchange(state_, LoadState::kCancelled);
}

LoadState LoadStateMachine::state() const {
  MutexLock lock(mutex_);
  return state_;
}

bool LoadStateMachine::has_runner() const {
  MutexLock lock(mutex_);
  return has_runner_;
}

absl::Status LoadStateMachine::cancelled() const {
  MutexLock lock(mutex_);
  return why_;
}

}  // namespace ckptd

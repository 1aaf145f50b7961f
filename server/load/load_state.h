// The states of one load as its leader sees it, and which state may follow which.
// Modelled on the state table of TensorFlow Serving's loader_harness.h.
#ifndef CKPTD_SERVER_LOAD_LOAD_STATE_H_
#define CKPTD_SERVER_LOAD_LOAD_STATE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/protocol/domain.h"

namespace ckptd {

enum class LoadState : uint8_t {
  kGathering,         // waits for the requests of other ranks
  kWaitingForMemory,  // ranks have refused it memory that clients hold
  kQueued,  // complete; the load worker has yet to take it
  kOpening,
  kPlanning,
  kAllocating,  // the first state in which ranks have done something for it
  kTransferring,
  kPublishing,  // ranks become ACTIVE: it can no longer be cancelled
  kActive,
  kFailed,
  kCancelled,
};
inline constexpr size_t kLoadStates = 11;
std::string_view NameOf(LoadState state);

// Whether `to` may follow `from`. Final states are followed by none.
bool IsLegal(LoadState from, LoadState to);
bool IsFinal(LoadState state);
// Whether a load in that state waits for ranks or memory, and no runner has it.
bool IsWaiting(LoadState state);
// What clients are shown. kUnspecified for final states.
Stage StageOf(LoadState state);

// The state of one load, which its pending load and its runner share. Thread-safe.
class LoadStateMachine {
 public:
  // `changed` is called after Advance and Fail have changed the state, outside of the lock.
  explicit LoadStateMachine(LoadState initial = LoadState::kGathering,
                            std::function<void()> changed = nullptr)
      : changed_(std::move(changed)), state_(initial), has_runner_(!IsWaiting(initial)) {}

  // --- the pending load ---
  // kGathering -> kQueued: a runner will have it. False where it was cancelled.
  bool Take();
  // The runner hands the load back, or its ranks have room: it waits in `to`. A load that was
  // cancelled stays so.
  void Requeue(LoadState to);
  // Enters kCancelled; the state it was in. Nothing changes where the load is being published or
  // has ended.
  std::optional<LoadState> Cancel(const absl::Status& why);

  // --- the runner ---
  // Enters `to`. Errors: why the load was cancelled, and then the state stays kCancelled; Internal
  // ILLEGAL_STATE for a step that the table does not have, which is a mistake in the program.
  absl::Status Advance(LoadState to);
  // Enters kFailed, where the load has not ended.
  void Fail();

  LoadState state() const;
  // Whether the load was taken to run and its runner has yet to end.
  bool has_runner() const;
  // Why it was cancelled; OK: it was not.
  absl::Status cancelled() const;

 private:
  // Enters `to`, which may follow, or says why not.
  absl::Status Enter(LoadState to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void()> changed_;
  mutable Mutex mutex_;
  LoadState state_ ABSL_GUARDED_BY(mutex_);
  bool has_runner_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_LOAD_STATE_H_

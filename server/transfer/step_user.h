// Uses the bytes of a transfer step by step, while the transfer goes on.
#ifndef CKPTD_SERVER_TRANSFER_STEP_USER_H_
#define CKPTD_SERVER_TRANSFER_STEP_USER_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "common/plan/plan.h"

namespace ckptd {

// The transfer's threads call these functions, so they must be thread-safe. Step numbers count
// the steps of this transfer. An error of any function ends the transfer with it.
class StepUser {
 public:
  virtual ~StepUser() = default;
  // Called in order, once per step, before any thread enters it. `plans` say what each target
  // receives of the window's tensors. Must not wait.
  virtual absl::Status Plan(size_t step, std::span<const RankPlan* const> plans) = 0;
  // Called before a thread writes its first byte of a step. Returns when the targets may be
  // written. The calling thread has finished its work on earlier steps.
  virtual absl::Status Enter(size_t step) = 0;
  // Called once per step, in any order, when every byte of the step is in place.
  virtual void Filled(size_t step) = 0;
  // The transfer has failed: threads that wait in Enter must return with `status`.
  virtual void Stop(const absl::Status& status) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_STEP_USER_H_

// Takes along what a transfer brings, step by step, while it goes on.
#ifndef CKPTD_SERVER_TRANSFER_STEP_USER_H_
#define CKPTD_SERVER_TRANSFER_STEP_USER_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "common/plan/plan.h"

namespace ckptd {

// Told by the transfer's threads; thread-safe. Steps are numbers in the list of those that
// the transfer does. After an error of any of these the transfer ends with it.
class StepUser {
 public:
  virtual ~StepUser() = default;
  // In order, once per step, before any thread enters it: what each target receives of the
  // tensors of the step's window. Does not wait.
  virtual absl::Status Plan(size_t step, std::span<const RankPlan* const> plans) = 0;
  // Before a thread's first byte of a step: returns when its targets may be written. A
  // thread that waits here owes nothing to earlier steps.
  virtual absl::Status Enter(size_t step) = 0;
  // Every byte of the step is in place; once per step, in any order.
  virtual void Filled(size_t step) = 0;
  // The transfer has failed: whoever waits in Enter returns with `status`.
  virtual void Stop(const absl::Status& status) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_STEP_USER_H_

#include "client/cli/exit_codes.h"

#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::cli {

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitFine;
  const std::string why = ReasonOf(status);
  if (why == reason::kDaemonUnreachable) return kExitUnreachable;
  if (why == reason::kNotActive || why == reason::kDeadline) return kExitNotReady;
  if (why == reason::kDigestMismatch) return kExitMismatch;
  if (why == reason::kLayoutInvalid) return kExitUsage;  // the layout was given on the command line
  return kExitFailed;
}

}  // namespace ckptd::cli

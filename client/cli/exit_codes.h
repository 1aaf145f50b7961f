// Exit codes of ckptctl. They are part of its interface; `ckptctl --help` lists them.
#ifndef CKPTD_CLIENT_CLI_EXIT_CODES_H_
#define CKPTD_CLIENT_CLI_EXIT_CODES_H_

#include "absl/status/status.h"

namespace ckptd::cli {

inline constexpr int kExitFine = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreachable = 3;  // no daemon at the address
inline constexpr int kExitNotReady = 4;     // still loading, or not done in time
inline constexpr int kExitMismatch = 5;     // verification or diff found different bytes
inline constexpr int kExitInterrupted = 130;

int ExitCodeOf(const absl::Status& status);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_EXIT_CODES_H_

// Runs a verb on one daemon, or with --all-ranks on those of the whole group.
#ifndef CKPTD_CLIENT_CLI_ALL_RANKS_H_
#define CKPTD_CLIENT_CLI_ALL_RANKS_H_

#include <CLI/App.hpp>
#include <functional>

#include "absl/status/status.h"
#include "client/cli/context.h"

namespace ckptd::cli {

// Adds the option. `all` must live until parsing has ended.
void AddAllRanks(CLI::App& verb, bool& all);

// Calls `act` with a context for the chosen daemon, or for each rank's, one after the other. All
// are tried. The error names the ranks that failed, and is that of the first one. Without an
// address, these are the ranks with sockets in the job's folder; a remark tells that other hosts
// have more. Usage errors: together with --rank, or with the address of one daemon.
absl::Status ForEachRank(const Context& context, bool all,
                         const std::function<absl::Status(Context& of_rank)>& act);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_ALL_RANKS_H_

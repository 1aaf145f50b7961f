// Verbs that act on one daemon, or with --all-ranks on those of the whole group.
#ifndef CKPTD_CLIENT_CLI_ALL_RANKS_H_
#define CKPTD_CLIENT_CLI_ALL_RANKS_H_

#include <CLI/App.hpp>
#include <functional>

#include "absl/status/status.h"
#include "client/cli/context.h"

namespace ckptd::cli {

// Adds the option; `all` outlives the parsing.
void AddAllRanks(CLI::App& verb, bool& all);

// Calls `act` with a context whose daemon is the chosen one, or each rank's, one after the
// other. All are tried; the error names the ranks that failed, and is of the first of them.
// Without an address these are the ranks whose sockets are in the job's folder; a remark says that
// there are others on other hosts.
// Usage errors: beside --rank, or where the address is one daemon's.
absl::Status ForEachRank(const Context& context, bool all,
                         const std::function<absl::Status(Context& of_rank)>& act);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_ALL_RANKS_H_

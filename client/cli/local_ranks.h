// Which ranks' daemons are on this host, by the sockets in the job's folder.
#ifndef CKPTD_CLIENT_CLI_LOCAL_RANKS_H_
#define CKPTD_CLIENT_CLI_LOCAL_RANKS_H_

#include <cstdint>
#include <filesystem>
#include <set>

namespace ckptd::cli {

// The ranks that have a socket in the folder. Empty if it cannot be read.
std::set<uint32_t> RanksIn(const std::filesystem::path& folder);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_LOCAL_RANKS_H_

// Chooses the daemon to call: an argument, CKPTD_ADDRESS, or the default socket.
#ifndef CKPTD_CLIENT_CPP_ADDRESS_H_
#define CKPTD_CLIENT_CPP_ADDRESS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {
inline namespace client {

// Reads a variable. Nullopt if it is unset or empty.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

struct AddressQuery {
  std::string argument = {};          // empty: not given
  std::optional<uint32_t> rank = {};  // overrides RANK and SLURM_PROCID
  std::string job = {};               // overrides the environment; empty: not given
};

struct Address {
  std::string target;     // gRPC's address: "unix:/path", percent-encoded, or "host:port"
  std::string path;       // the Unix socket, or empty for TCP
  std::string chosen_by;  // "the argument", "CKPTD_ADDRESS", "the default": for error messages

  // As people write it, and as ResolveAddress accepts it.
  std::string Shown() const { return path.empty() ? target : "unix:" + path; }
};

// The workload address. Forms: /path, unix:/path, unix:///path, host:port. {rank} and
// {local_rank} stand for RANK / LOCAL_RANK (torchrun) or SLURM_PROCID / SLURM_LOCALID, 0 if
// unset. The default is RUN_DIR/JOB/rank-{rank}.sock with RUN_DIR = $CKPTD_RUN_DIR,
// $XDG_RUNTIME_DIR/ckptd, /run/ckptd (root) or $HOME/.ckptd/run, and JOB = $CKPTD_JOB,
// $SLURM_JOB_ID or "default". Errors: InvalidArgument INVALID_REQUEST naming the variable or
// argument.
absl::StatusOr<Address> ResolveAddress(const AddressQuery& query, const Environment& environment);

// The other socket of the same daemon: x.sock <-> x.admin.sock. Any other address is returned
// unchanged, because it may serve both.
Address AdminAddress(const Address& address);
Address WorkloadAddress(const Address& address);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ADDRESS_H_

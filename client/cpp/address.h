// Which daemon to call: an argument, CKPTD_ADDRESS, or the default socket.
#ifndef CKPTD_CLIENT_CPP_ADDRESS_H_
#define CKPTD_CLIENT_CPP_ADDRESS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {
inline namespace client {

// Looks a variable up; an unset and an empty one are both nullopt.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

struct AddressQuery {
  std::string argument = {};          // empty: not given
  std::optional<uint32_t> rank = {};  // beats RANK and SLURM_PROCID
  std::string job = {};               // beats the environment; empty: not given
};

struct Address {
  std::string target;     // what gRPC dials: "unix:/path", percent-encoded, or "host:port"
  std::string path;       // the Unix socket, or empty for TCP
  std::string chosen_by;  // "the argument", "CKPTD_ADDRESS", "the default": for error sentences

  // As people write it, and as ResolveAddress takes it.
  std::string Shown() const { return path.empty() ? target : "unix:" + path; }
};

// The workload address. Forms: /path, unix:/path, unix:///path, host:port.
// {rank} and {local_rank} stand for RANK / LOCAL_RANK (torchrun) or SLURM_PROCID
// / SLURM_LOCALID, 0 when unset. The default is RUN_DIR/JOB/rank-{rank}.sock
// with RUN_DIR = $CKPTD_RUN_DIR, $XDG_RUNTIME_DIR/ckptd, /run/ckptd (root) or
// $HOME/.ckptd/run, and JOB = $CKPTD_JOB, $SLURM_JOB_ID or "default".
// Errors: InvalidArgument INVALID_REQUEST naming the variable or argument.
absl::StatusOr<Address> ResolveAddress(const AddressQuery& query, const Environment& environment);

// The other socket of the same daemon: x.sock <-> x.admin.sock. Any other
// address is taken to serve what is asked of it, and returned as it is.
Address AdminAddress(const Address& address);
Address WorkloadAddress(const Address& address);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ADDRESS_H_

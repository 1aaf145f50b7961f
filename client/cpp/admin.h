// A connection to the admin socket of one daemon, for operators.
#ifndef CKPTD_CLIENT_CPP_ADMIN_H_
#define CKPTD_CLIENT_CPP_ADMIN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/types.h"

namespace ckptd {
inline namespace client {

// As Client: blocking, thread-safe, a deadline for every call, the same errors.
class AdminClient {
 public:
  // The options name the workload socket. This connects to the admin socket of the same daemon.
  static absl::StatusOr<AdminClient> Connect(const ConnectOptions& options = {});

  AdminClient(AdminClient&&) noexcept;
  AdminClient& operator=(AdminClient&&) noexcept;
  ~AdminClient();

  struct Unloaded {
    uint64_t freed_bytes = 0;
    bool cancelled = false;  // it was LOADING, and has failed on every rank
  };
  absl::StatusOr<Unloaded> Unload(const std::string& name, bool force, bool idle = false);
  absl::StatusOr<CheckpointInfo> Pin(const std::string& name, bool pinned);
  absl::StatusOr<std::vector<LeaseInfo>> Leases();
  absl::StatusOr<DaemonInfo> Info();
  // Makes the daemon refuse new work. With `wait`, waits until no lease is left. Returns the
  // remaining leases.
  absl::StatusOr<uint32_t> Drain(std::optional<Timeout> wait);
  struct Trimmed {
    uint64_t freed_bytes = 0;      // given back to the system
    uint64_t used_bytes = 0;       // of checkpoints
    uint64_t lingering_bytes = 0;  // of no checkpoint, but clients still map them
  };
  absl::StatusOr<Trimmed> Trim();
  // Returns the previous level.
  absl::StatusOr<std::string> SetLogLevel(const std::string& level);

 private:
  struct Impl;
  explicit AdminClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ADMIN_H_

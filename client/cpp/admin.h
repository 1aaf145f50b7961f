// A connection to the admin socket of one daemon: what operators do.
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

// As Client: blocking, thread-safe, deadlines on everything, the same errors.
class AdminClient {
 public:
  // The options name the workload socket; its admin twin is dialled.
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
  // Refuses new work from now on; with a wait, until no lease is left. Leases
  // that remain.
  absl::StatusOr<uint32_t> Drain(std::optional<Timeout> wait);
  struct Trimmed {
    uint64_t freed_bytes = 0;      // went back to the system
    uint64_t used_bytes = 0;       // of checkpoints
    uint64_t lingering_bytes = 0;  // of none any more, but clients map them
  };
  absl::StatusOr<Trimmed> Trim();
  // The level before.
  absl::StatusOr<std::string> SetLogLevel(const std::string& level);

 private:
  struct Impl;
  explicit AdminClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ADMIN_H_

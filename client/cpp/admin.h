// A connection to the admin socket of one daemon, for operators.
#ifndef CKPTD_CLIENT_CPP_ADMIN_H_
#define CKPTD_CLIENT_CPP_ADMIN_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ckptd/v1/admin_service.pb.h"
#include "client/cpp/client.h"

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

  absl::StatusOr<v1::UnloadCheckpointResponse> Unload(const std::string& name, bool force,
                                                      bool idle = false);
  absl::StatusOr<v1::Checkpoint> Pin(const std::string& name, bool pinned);
  absl::StatusOr<v1::ListLeasesResponse> Leases();
  absl::StatusOr<v1::GetDaemonInfoResponse> Info();
  // Makes the daemon refuse new work. With `wait`, waits until no lease is left.
  absl::StatusOr<v1::DrainDaemonResponse> Drain(std::optional<Timeout> wait);
  absl::StatusOr<v1::TrimMemoryResponse> Trim();
  absl::StatusOr<v1::SetLogLevelResponse> SetLogLevel(const std::string& level);

 private:
  struct Impl;
  explicit AdminClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ADMIN_H_

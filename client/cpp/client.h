// A connection to one daemon, for trainers and tools.
#ifndef CKPTD_CLIENT_CPP_CLIENT_H_
#define CKPTD_CLIENT_CPP_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ckptd/v1/checkpoint_service.pb.h"
#include "client/cpp/address.h"
#include "client/cpp/cancel.h"
#include "client/cpp/shard.h"
#include "client/cpp/types.h"

namespace ckptd {
inline namespace client {

using Timeout = std::chrono::milliseconds;

struct ConnectOptions {
  AddressQuery address = {};           // empty: CKPTD_ADDRESS, otherwise the default socket
  Timeout connect_timeout{5'000};
  // for each call without a timeout of its own, all its pages together
  Timeout call_timeout{30'000};
  // How long a daemon may be away (such as during a restart), or silent where it should answer at
  // once, before a call with a longer timeout gives up.
  Timeout gone_timeout{8'000};
};

struct LoadOptions {
  // Whether this client will acquire the shard. It is then not evicted for 10 s.
  bool hold = true;
};

struct WatchOptions {
  Timeout timeout{3'600'000};
  // Called with each state, on the calling thread.
  std::function<void(const v1::Checkpoint&)> on_update = {};
  CancelToken* cancel = nullptr;  // not owned; ends the call with Cancelled
};

struct AcquireOptions {
  AttachMode mode = AttachMode::kShared;
  bool populate = true;
};

// Every call blocks until its answer or its deadline. Thread-safe. Errors have the daemon's code,
// reason and facts. A daemon that cannot be reached is Unavailable DAEMON_UNREACHABLE, one that
// does not answer in time DeadlineExceeded DEADLINE. A source is an absolute path on the daemon's
// host, of any bytes, or its file URI.
class Client {
 public:
  static absl::StatusOr<Client> Connect(const ConnectOptions& options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  const Address& address() const;

  // Fetches all pages of the source's table. `view`: as LoadSpec.view.
  absl::StatusOr<SourceInfo> Inspect(const std::string& source, bool values = false,
                                     const std::string& view = "");
  absl::StatusOr<v1::PlanLoadResponse> Plan(const v1::LoadSpec& spec);
  // Plans for the devices of one process instead of ranks: `request` has a device_map and no layout.
  absl::StatusOr<v1::DeviceMap> PlanDevices(const v1::PlanLoadRequest& request);
  // Starts a load, or finds the resident checkpoint. Returns at once. A call that the transport
  // lost is sent again with the same request id.
  absl::StatusOr<v1::LoadCheckpointResponse> Load(const v1::LoadSpec& spec,
                                                  const LoadOptions& options = {});
  // Follows a load until it is no longer LOADING, whatever its state is then.
  absl::StatusOr<v1::Checkpoint> Watch(const std::string& name, const WatchOptions& options = {});
  absl::StatusOr<v1::Checkpoint> Get(const std::string& name);
  // All pages in one answer.
  absl::StatusOr<v1::ListCheckpointsResponse> List();
  // Leases and maps this rank's shard. Everything that the daemon says about it is checked before
  // anything is mapped.
  absl::StatusOr<Shard> Acquire(const std::string& name, const AcquireOptions& options = {});
  // Has the daemon compute the digests of the resident shard again.
  absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& name,
                                                      Timeout timeout = Timeout(600'000));

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "checkpoints/ab12" for "ab12" and for itself.
std::string CheckpointName(std::string_view id_or_name);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_CLIENT_H_

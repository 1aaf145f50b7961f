// A connection to one daemon, for trainers and tools.
#ifndef CKPTD_CLIENT_CPP_CLIENT_H_
#define CKPTD_CLIENT_CPP_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/address.h"
#include "client/cpp/cancel.h"
#include "client/cpp/shard.h"
#include "client/cpp/types.h"
#include "common/base/handle_kind.h"
#include "common/devices/device_map.h"
#include "common/layout/layout.h"

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

// The rule form ("fsdp:4" or the JSON text of a layout file), or the rank form for this daemon's
// rank, with expected shapes for all of its tensors or for none.
using LayoutSpec = std::variant<std::string, RankLayout>;

struct PlanRequest {
  std::string source = {};  // absolute path on the daemon's host, or its file URI
  LayoutSpec layout = {};
  DtypePolicy dtype_policy = {};
};

// A plan for devices of one process instead of ranks; see DeviceMapOptions and ModuleTreeOptions.
struct DeviceMapRequest {
  std::string source = {};  // absolute path on the daemon's host, or its file URI
  DtypePolicy dtype_policy = {};
  DeviceMapWay way = DeviceMapWay::kAuto;
  std::string max_memory = {};  // as ParseMaxMemory accepts it
  std::vector<std::string> no_split = {};
  std::vector<std::string> order = {};
  std::map<std::string, std::string> tied = {};
};

struct LoadRequest {
  std::string source = {};  // absolute path on the daemon's host, or its file URI
  LayoutSpec layout = {};
  DtypePolicy dtype_policy = {};
  AttachMode intended_mode = AttachMode::kShared;
  // The kind of handles for the memory. Unset: the default of the daemon's tier. For kCudaIpc
  // read about CudaIpcHandle in ckptd/v1/checkpoint_service.proto.
  std::optional<HandleKind> handle_kind = {};
  bool digests = true;
  Timeout timeout{600'000};  // for the whole load; at most 24 hours
  // How long to wait for memory that clients hold. 0: NO_MEMORY at once.
  Timeout wait_memory{0};
  // Whether this client will acquire the shard. It is then not evicted for 10 s.
  bool hold = true;
};

struct LoadResult {
  CheckpointInfo checkpoint;
  bool resident = false;             // it was there already, or is being loaded
  // identity fields in which a similar resident checkpoint differs
  std::vector<std::string> differs;
};

struct WatchOptions {
  Timeout timeout{3'600'000};
  // Called with each state, on the calling thread.
  std::function<void(const CheckpointInfo&)> on_update = {};
  CancelToken* cancel = nullptr;  // not owned; ends the call with Cancelled
};

struct AcquireOptions {
  AttachMode mode = AttachMode::kShared;
  bool populate = true;
};

// Every call blocks until its answer or its deadline. Thread-safe. Errors have the daemon's code,
// reason and facts. A daemon that cannot be reached is Unavailable DAEMON_UNREACHABLE, one that
// does not answer in time DeadlineExceeded DEADLINE.
class Client {
 public:
  static absl::StatusOr<Client> Connect(const ConnectOptions& options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  const Address& address() const;

  // Fetches all pages of the source's table.
  absl::StatusOr<SourceInfo> Inspect(const std::string& source);
  absl::StatusOr<PlanSummary> Plan(const PlanRequest& request);
  absl::StatusOr<DeviceMap> Plan(const DeviceMapRequest& request);
  // Starts a load, or finds the resident checkpoint. Returns at once. A call that the transport
  // lost is sent again with the same request id.
  absl::StatusOr<LoadResult> Load(const LoadRequest& request);
  // Follows a load until it is no longer LOADING, whatever its state is then.
  absl::StatusOr<CheckpointInfo> Watch(const std::string& name, const WatchOptions& options = {});
  absl::StatusOr<CheckpointInfo> Get(const std::string& name);
  absl::StatusOr<std::vector<CheckpointInfo>> List();
  // Leases and maps this rank's shard. Everything that the daemon says about it is checked before
  // anything is mapped.
  absl::StatusOr<Shard> Acquire(const std::string& name, const AcquireOptions& options = {});
  // Has the daemon compute the digests of the resident shard again.
  absl::StatusOr<VerifyResult> Verify(const std::string& name, Timeout timeout = Timeout(600'000));

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

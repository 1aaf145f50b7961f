// A connection to one daemon: what trainers and tools do with checkpoints.
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
  AddressQuery address = {};           // empty: CKPTD_ADDRESS, else the default socket
  Timeout connect_timeout{5'000};
  Timeout call_timeout{30'000};        // of each call that is given no other, all its pages together
  // How long a daemon may be gone, as while it is restarted, or silent where it would answer
  // at once, before a call that has longer gives up.
  Timeout gone_timeout{8'000};
};

// Rule form ("fsdp:4" or the JSON text of a layout file), or the rank form of
// this daemon's rank, with expected shapes for all of its tensors or for none.
using LayoutSpec = std::variant<std::string, RankLayout>;

struct PlanRequest {
  std::string source = {};  // absolute path, as the daemon sees it, or its file URI
  LayoutSpec layout = {};
  DtypePolicy dtype_policy = {};
};

// Devices of one process instead of ranks; see DeviceMapOptions and ModuleTreeOptions.
struct DeviceMapRequest {
  std::string source = {};  // absolute path, as the daemon sees it, or its file URI
  DtypePolicy dtype_policy = {};
  DeviceMapWay way = DeviceMapWay::kAuto;
  std::string max_memory = {};  // as ParseMaxMemory reads it
  std::vector<std::string> no_split = {};
  std::vector<std::string> order = {};
  std::map<std::string, std::string> tied = {};
};

struct LoadRequest {
  std::string source = {};  // absolute path, as the daemon sees it, or its file URI
  LayoutSpec layout = {};
  DtypePolicy dtype_policy = {};
  AttachMode intended_mode = AttachMode::kShared;
  // As which the memory will be handed out; unset: as the daemon's tier does by itself.
  // For kCudaIpc read about CudaIpcHandle in ckptd/v1/checkpoint_service.proto.
  std::optional<HandleKind> handle_kind = {};
  bool digests = true;
  Timeout timeout{600'000};  // of the whole load; at most 24 hours
  // For memory that clients hold now; 0: NO_MEMORY at once.
  Timeout wait_memory{0};
  // Whether this client will acquire it: until then, for 10 s, it is not evicted.
  bool hold = true;
};

struct LoadResult {
  CheckpointInfo checkpoint;
  bool resident = false;             // it was there already, or is being loaded
  std::vector<std::string> differs;  // identity fields in which a resident near-miss differs
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

// Every call blocks until its answer or its deadline. Thread-safe. Errors carry
// the daemon's code, reason and facts; a daemon that is not there is Unavailable
// DAEMON_UNREACHABLE, one that does not answer in time DeadlineExceeded DEADLINE.
class Client {
 public:
  static absl::StatusOr<Client> Connect(const ConnectOptions& options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  const Address& address() const;

  // All pages of the source's table.
  absl::StatusOr<SourceInfo> Inspect(const std::string& source);
  absl::StatusOr<PlanSummary> Plan(const PlanRequest& request);
  absl::StatusOr<DeviceMap> Plan(const DeviceMapRequest& request);
  // Starts a load, or finds the resident checkpoint; returns at once. A call
  // that the transport lost is tried again under the same request id.
  absl::StatusOr<LoadResult> Load(const LoadRequest& request);
  // Follows a load until it leaves LOADING, whatever it became then.
  absl::StatusOr<CheckpointInfo> Watch(const std::string& name, const WatchOptions& options = {});
  absl::StatusOr<CheckpointInfo> Get(const std::string& name);
  absl::StatusOr<std::vector<CheckpointInfo>> List();
  // Leases and maps this rank's shard. Nothing is mapped before everything that
  // the daemon said about it was checked.
  absl::StatusOr<Shard> Acquire(const std::string& name, const AcquireOptions& options = {});
  // Computes the digests of the resident shard again, in the daemon.
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

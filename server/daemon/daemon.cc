#include "server/daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/table_memory.h"
#include "server/daemon/access_settings.h"
#include "server/daemon/check_config.h"
#include "server/daemon/network.h"
#include "server/daemon/peer_auth.h"
#include "server/daemon/preload.h"
#include "server/daemon/service_manager.h"
#include "server/daemon/slab_dir.h"
#include "server/daemon/stop_deadline.h"
#include "server/keeper/keeper_client.h"
#include "server/keeper/slab_folder.h"
#include "server/keeper/systemd_store.h"
#include "server/rpc/links.h"

namespace ckptd {
namespace {

constexpr std::chrono::milliseconds kReadyPoll{200};
constexpr std::chrono::seconds kOrphanPatience{5};
constexpr std::chrono::milliseconds kOrphanTick{20};
// Who starts both starts the keeper first, so this is for a keeper that is being started again.
constexpr std::chrono::milliseconds kKeeperPatience{1000};
// How long other daemons may take to say what they still own, because loads wait meanwhile.
constexpr std::chrono::milliseconds kDropPatience{200};
// Rank-form requests of very large models exceed the default of 4 MiB.
constexpr int kMaxWorkloadMessage = 256 << 20;
// Limits of messages that arrive at the same time.
constexpr size_t kMaxWorkloadBytes = size_t{1} << 30;
constexpr size_t kMaxAdminBytes = size_t{64} << 20;
constexpr size_t kMaxStrangersBytes = size_t{1} << 30;

// Daemons of the group are trusted, and a thousand ranks may send their tensors at once. Without a
// key everybody is a peer.
size_t MaxPeerBytes(bool known) {
  if (!known) return kMaxStrangersBytes;
  const auto machine = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return std::max(machine / 4, 4 * kMaxStrangersBytes);
}

// Each call occupies a thread. Every rank may have a proposal or a stream of bytes, and a
// heartbeat as well.
int PeerThreads(uint32_t world_size) { return 64 + 2 * static_cast<int>(world_size); }

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

// Explains why the rank's sockets are in use: most often they belong to another job.
absl::Status ExplainSocketInUse(const absl::Status& status, const std::string& job) {
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  return MakeError(status.code(), ReasonOf(status),
                   fmt::format("{}; if a job called {} runs here already, give this one another "
                               "name with --job (CKPTD_JOB)",
                               MessageOf(status), job),
                   FactsOf(status));
}

}  // namespace

Daemon::Daemon(const Config& config)
    : config_(config),
      paths_(PathsOf(config)),
      host_(config.host_id.empty() ? BootId() : config.host_id) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config) {
  CKPTD_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<Daemon> daemon(new Daemon(config));
  CKPTD_ASSIGN_OR_RETURN(daemon->security_, ReadPeerSecurity(config, ReadEnvironment));
  CKPTD_ASSIGN_OR_RETURN(daemon->policy_, ReadAccessPolicy(config));
  CKPTD_ASSIGN_OR_RETURN(daemon->rules_->roots, ReadAllowedRoots(config));
  CKPTD_RETURN_IF_ERROR(MakeRunDirectory(daemon->paths_.directory, daemon->policy_.group));
  CKPTD_RETURN_IF_ERROR(daemon->LockRank());
  SetAdmitTables(HasRoomForTables);
  CKPTD_RETURN_IF_ERROR(daemon->StartPeerServer());
  CKPTD_RETURN_IF_ERROR(daemon->StartClientServers());
  Log(LogLevel::kInfo, "serving rank {} of {} at {} (peers: {}{}), memory: {}; {}", config.rank,
      config.world_size, daemon->paths_.workload, daemon->peer_address_,
      daemon->security_.enabled() ? "" : ", open to everybody", daemon->memory_.backend->tier(),
      daemon->memory_.reason);
  return daemon;
}

// Every rank may be a reader, and so map the memory of others.
void Daemon::SetSecret(const std::string& secret) {
  peer_socket_->SetSecret(secret);
  peer_memory_->SetSecret(secret);
}

Node::Options Daemon::NodeOptions() {
  Node::Options options;
  options.identity = {config_.job, CKPTD_VERSION, config_.rank, config_.world_size,
                      RandomHex(8), peer_address_, host_, static_cast<int32_t>(::getpid())};
  options.memory_endpoint = paths_.memory;
  options.reading.threads = config_.reader_threads;
  options.reading.rules = rules_;
  options.reading.io_mode = ParseIoMode(config_.read).value();  // CheckConfig has checked it
  options.reader = ParseReaderPolicy(config_.reader).value();    // CheckConfig has checked it
  options.heartbeat_interval = Seconds(config_.heartbeat_interval);
  options.heartbeat_timeout = Seconds(config_.heartbeat_timeout);
  options.connect = [this](const MemberIdentity& who) { return ConnectToMember(who, security_); };
  if (config_.rank != 0) options.leader = ConnectToLeader(config_.rendezvous, security_);
  options.on_secret = [this](const std::string& secret) { SetSecret(secret); };
  options.config = Describe(config_);
  options.tier_reason = memory_.reason;
  options.host_tier = memory_.host_tier.get();
  options.ready = memory_.ready;
  options.keeper = keeping_.get();
  options.drop_released = [this] { peer_memory_->DropReleased(Clock::now() + kDropPatience); };
  if (config_.metrics != "0") {
    recorder_ = std::make_unique<MetricsRecorder>();
    options.load_observers = {recorder_.get()};
    options.observer = recorder_.get();
  }
  options.reading.comm = ParseCommChoice(config_.comm).value();  // CheckConfig has checked it
  options.comms = memory_.comms.get();
  options.no_comms = memory_.no_comms;
  options.keep_comm = config_.idle == "keep";
  return options;
}

// The peer port must be known before the node joins, and the node must exist before the port
// serves. So the server reserves the port first, and its service gets the node later.
absl::Status Daemon::StartPeerServer() {
  CKPTD_ASSIGN_OR_RETURN(const HostPort rendezvous, ParseHostPort(config_.rendezvous));
  const std::string own = OwnHost(rendezvous);
  const bool loopback = own == "127.0.0.1" || own == "[::1]" || own == "localhost";
  const std::string interface = loopback ? own : std::string("[::]");
  uint32_t port = rendezvous.port;
  if (config_.rank != 0) {
    port = config_.peer_port == 0 ? 0 : config_.peer_port + config_.rank % config_.local_size;
  }
  group_service_ = std::make_unique<GroupServiceImpl>();
  transfer_service_ = std::make_unique<TransferServiceImpl>();
  CKPTD_ASSIGN_OR_RETURN(
      peer_server_,
      GrpcServer::Start({.address = fmt::format("{}:{}", interface, port),
                         .max_receive_bytes = kMaxPeerMessage,
                         .max_threads = PeerThreads(config_.world_size),
                         .credentials = PeerServerCredentials(security_),
                         .max_held_bytes = MaxPeerBytes(security_.enabled())},
                        {group_service_.get(), transfer_service_.get()}));
  peer_address_ = fmt::format("{}:{}", own, peer_server_->port());
  return absl::OkStatus();
}

std::string Daemon::OwnHost(const HostPort& rendezvous) const {
  if (!config_.advertise.empty()) return config_.advertise;
  const absl::StatusOr<std::string> own = OwnAddressTowards(rendezvous);
  if (own.ok()) return *own;
  // Rank 0 is known by this name to all. The others learn their address when they join.
  Log(LogLevel::kInfo, "{}; the name may get its address later", MessageOf(own.status()));
  return config_.rank == 0 ? rendezvous.host : std::string(kUnknownHost);
}

// If hosts share the folder, a daemon on another host cannot be found by its socket, but by the
// lock of a file.
absl::Status Daemon::LockRank() {
  auto lock = FileLock::Take(paths_.lock);
  // Under a launcher: the daemon of one that was killed ends with it, which takes that a moment.
  const auto deadline = Clock::now() + kOrphanPatience;
  while (lock.status().code() == absl::StatusCode::kFailedPrecondition && config_.ready_fd >= 0 &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(kOrphanTick);
    lock = FileLock::Take(paths_.lock);
  }
  if (lock.status().code() == absl::StatusCode::kFailedPrecondition) {
    return ExplainSocketInUse(
        MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                  fmt::format("starting rank {}: another daemon holds {}, here or on a host that "
                              "shares the folder; stop that one, or choose another --run-dir",
                              config_.rank, paths_.lock)),
        config_.job);
  }
  CKPTD_RETURN_IF_ERROR(lock.status());
  rank_lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status Daemon::StartKeeping() {
  std::unique_ptr<DescriptorStore> store;
  if (config_.keeper == kSystemdKeeper) {
    CKPTD_ASSIGN_OR_RETURN(store, SystemdStore::Take(ReadEnvironment));
  } else if (!config_.keeper.empty() && config_.keeper != kNoKeeper) {
    // Several jobs may have one keeper.
    const std::string owner = fmt::format("{}/rank-{}", config_.job, config_.rank);
    store = KeeperClient::Start(config_.keeper, owner, kKeeperPatience);
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string folder, MakeSlabFolder(config_));
  if (!folder.empty()) {
    CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<DescriptorStore> files, SlabFolder::Open(folder));
    if (store != nullptr) files = std::make_unique<TwoStores>(std::move(files), std::move(store));
    store = std::move(files);
  }
  if (store == nullptr) return absl::OkStatus();
  keeping_ = std::make_unique<Keeping>(std::move(store), config_.rank, config_.world_size,
                                       std::max(1U, std::thread::hardware_concurrency()));
  return absl::OkStatus();
}

absl::Status Daemon::StartMemory() {
  CKPTD_RETURN_IF_ERROR(StartKeeping());
  CKPTD_ASSIGN_OR_RETURN(
      memory_, MakeMemoryTier(config_, keeping_ == nullptr ? KeptBytes() : keeping_->FoundBytes()));
  if (keeping_ != nullptr) keeping_->SetMemory(*memory_.backend);
  return absl::OkStatus();
}

absl::Status Daemon::StartClientServers() {
  CKPTD_RETURN_IF_ERROR(StartMemory());
  peer_memory_ = std::make_unique<HostPeerMemory>(host_, memory_.import);
  auto peer_socket = PeerSocket::Start({paths_.memory}, memory_.segment_fd);
  if (!peer_socket.ok()) return ExplainSocketInUse(peer_socket.status(), config_.job);
  peer_socket_ = *std::move(peer_socket);
  node_ = std::make_unique<Node>(*memory_.backend, *peer_memory_, NodeOptions());
  if (config_.rank == 0) SetSecret(node_->group_secret());
  group_service_->SetNode(*node_);
  transfer_service_->SetNode(*node_);
  CKPTD_ASSIGN_OR_RETURN(fd_server_, FdServer::Start(paths_.fd, node_->leases(), {policy_, rules_},
                                                     keeping_ == nullptr
                                                         ? std::vector<FdServer::Adopted>()
                                                         : keeping_->TakeConnections()));
  checkpoint_service_ = std::make_unique<CheckpointServiceImpl>(*node_, paths_.fd);
  admin_service_ = std::make_unique<AdminServiceImpl>(
      *node_, AdminServiceImpl::Endpoints{paths_.workload, paths_.fd, peer_address_});
  awaits_load_ = config_.ready_when == "loaded";
  health_service_ = std::make_unique<HealthServiceImpl>(
      [this](const std::string& service) { return HealthNow(service); });
  CKPTD_ASSIGN_OR_RETURN(
      workload_server_,
      GrpcServer::Start({.address = "unix:" + paths_.workload,
                         .max_receive_bytes = kMaxWorkloadMessage,
                         .max_threads = 128,
                         .max_held_bytes = kMaxWorkloadBytes,
                         .policy = policy_,
                         .for_guest = [this](const Caller& guest) { return ForGuest(guest); }},
                        {checkpoint_service_.get(), health_service_.get()}));
  CKPTD_ASSIGN_OR_RETURN(
      admin_server_,
      GrpcServer::Start({.address = "unix:" + paths_.admin,
                         .max_held_bytes = kMaxAdminBytes,
                         .policy = policy_},
                        {admin_service_.get(), health_service_.get()}));
  CKPTD_ASSIGN_OR_RETURN(health_server_, StartHealthServer(config_, *health_service_));
  CKPTD_ASSIGN_OR_RETURN(metrics_port_, ServeMetrics(config_, *node_, recorder_.get()));
  return absl::OkStatus();
}

GrpcServer::Services Daemon::ForGuest(const Caller& guest) {
  GrpcServer::Services services;
  services.push_back(std::make_unique<CheckpointServiceImpl>(*node_, paths_.fd, guest));
  // A name that somebody else has loaded is none of its business.
  services.push_back(std::make_unique<HealthServiceImpl>([this](const std::string& service) {
    return service.rfind(kCheckpointService, 0) == 0 ? ServingStatus::kUnknown : HealthNow(service);
  }));
  return services;
}

ServingStatus Daemon::HealthNow(const std::string& service) const {
  if (service.empty() && awaits_load_) return ServingStatus::kNotServing;
  return HealthOf(*node_, service);
}

void Daemon::ShowUse() const {
  if (node_->InUse()) rank_lock_.Touch();
}

void Daemon::AnnounceReady(const std::function<bool()>& stop) {
  const auto start = Clock::now();
  while (!node_->WaitReady(Clock::now() + kReadyPoll)) {
    if (stop()) return;
  }
  Log(LogLevel::kInfo, "the group of {} is complete, {:.3f} s after the start", config_.world_size,
      std::chrono::duration<double>(Clock::now() - start).count());
  const UniqueFd ready(config_.ready_fd);
  const bool waits = config_.ready_when == "loaded";
  WriteReadyFd(waits ? 'g' : '1');
  if (config_.load.empty()) return;
  const absl::Status loaded = LoadFirst(stop);
  if (!waits || absl::IsCancelled(loaded)) return;
  if (loaded.ok()) awaits_load_ = false;
  WriteReadyFd(loaded.ok() ? '1' : '0');
}

void Daemon::WriteReadyFd(char state) const {
  // A supervisor that started this process listens there, and tells the service manager itself.
  if (config_.ready_fd < 0 && state == '1') NotifyServiceManager("READY=1");
  if (config_.ready_fd < 0 || ::write(config_.ready_fd, &state, 1) == 1) return;
  Log(LogLevel::kWarn, "writing to --ready-fd {}: {}", config_.ready_fd, std::strerror(errno));
}

absl::Status Daemon::LoadFirst(const std::function<bool()>& stop) {
  const auto request = PreloadRequest(config_, !memory_.backend->device().empty());
  const absl::Status loaded = request.ok() ? Preload(*node_, *request, stop) : request.status();
  if (!loaded.ok() && !absl::IsCancelled(loaded)) {
    Log(LogLevel::kError,
        "loading {} at the start failed; trainers that need it request it again: {} ({})",
        config_.load, MessageOf(loaded), ReasonOf(loaded));
  }
  return loaded;
}

Daemon::~Daemon() {
  // Stops accepting, ends watches and loads, then frees everything. Leases end with the fd
  // server. Clients keep what they have mapped.
  std::optional<StopDeadline> deadline(std::in_place);
  if (keeping_ != nullptr) keeping_->LeaveLeases();
  if (node_ != nullptr) node_->Stop();
  if (health_service_ != nullptr) health_service_->Stop();
  metrics_port_.reset();
  health_server_.reset();
  admin_server_.reset();
  workload_server_.reset();
  peer_server_.reset();
  fd_server_.reset();
  if (keeping_ != nullptr) keeping_->LeaveAll();
  node_.reset();
  deadline.reset();  // freeing much memory may take long
  peer_socket_.reset();
}

}  // namespace ckptd

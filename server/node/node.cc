#include "server/node/node.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "server/load/check_request.h"
#include "server/load/local_link.h"
#include "server/load/member_reading.h"
#include "server/node/open_seen.h"
#include "server/node/trainer_key.h"
#include "server/node/verify_shard.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

constexpr int kAttempts = 3;
constexpr size_t kRememberedRequests = 1024;

absl::Status CheckOnStorage(const CheckpointIndex& index, const SourceAccess& access) {
  return index.files.empty() ? Recognise(index.source, access) : CheckUnchanged(index, access);
}

// Waits for a worker's answer. Errors: DeadlineExceeded DEADLINE.
template <typename T>
absl::StatusOr<T> Await(std::future<absl::StatusOr<T>> future, Deadline deadline,
                        const std::string& doing) {
  if (future.wait_until(deadline) == std::future_status::ready) return future.get();
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("{}: the daemon did not finish in time (its storage may be slow, or "
                               "it is busy with a load); try again",
                               doing));
}

// Before this rank joins the group, which is told then of what was restored.
void UseKeeper(ShardKeeper* keeper, Catalog& catalog, LeaseTable& leases) {
  if (keeper == nullptr) return;
  catalog.SetKeeper(keeper);
  leases.SetKeeper(keeper);
  keeper->Restore(catalog, leases);
}

}  // namespace

Node::Node(MemoryBackend& backend, PeerMemory& peer_memory, Options options)
    : options_(std::move(options)),
      backend_(backend),
      peer_memory_(peer_memory),
      comms_(options_.comms, options_.no_comms, options_.keep_comm),
      catalog_(backend, options_.identity.rank, options_.identity.world_size),
      leases_(catalog_),
      host_tier_(options_.host_tier, options_.reading.threads),
      rank_side_(catalog_, backend,
                 {options_.identity.rank, options_.memory_endpoint,
                  host_tier_.enabled() ? &host_tier_ : nullptr, &comms_, &leases_}),
      participants_([this] { TellGroupNow(); }),
      lookups_(CheckOnStorage) {
  Eviction& eviction = catalog_.eviction();
  eviction.SetLater([this](std::function<void()> free) { load_worker_.Post(std::move(free)); });
  eviction.SetHolders([this](const std::string& name) { return leases_.HoldersOf(name); });
  eviction.SetObserver(options_.observer);
  leases_.SetObserver(options_.observer);
  UseKeeper(options_.keeper, catalog_, leases_);
  if (options_.identity.rank == 0) {
    membership_ = std::make_unique<Membership>(
        Membership::Options{options_.identity, std::make_shared<LocalLink>(rank_side_),
                            options_.connect, options_.heartbeat_interval,
                            options_.heartbeat_timeout});
    coordinator_ = std::make_unique<Coordinator>(
        Coordinator::Parts{catalog_, *membership_, {peer_memory, backend, comms_},
                           load_worker_, lookups_, stalls_,
                           options_.reading, options_.reader,
                           &leases_, &participants_, options_.load_observers});
  } else {
    follower_ = std::make_unique<Follower>(
        Follower::Parts{catalog_, backend_, options_.leader, options_.on_secret,
                        own_reading_,
                        [this](uint32_t rank, const std::string& incarnation) {
                          load_worker_.Post([=, this] { peer_memory_.Forget(rank, incarnation); });
                        },
                        std::chrono::seconds(5), &participants_},
        options_.identity);
  }
}

Node::~Node() { Stop(); }

void Node::TellGroupNow() {
  follower_ == nullptr ? coordinator_->WakeForHeartbeat() : follower_->SendHeartbeatNow();
}

void Node::Stop() {
  draining_ = true;
  stopping_ = true;
  queries_.Stop();
  if (coordinator_ != nullptr) coordinator_->Stop();
  if (follower_ != nullptr) follower_->Stop();
  catalog_.Stop();
  leases_.Stop();
}

bool Node::InUse() const {
  if (!leases_.Empty()) return true;
  const std::vector<CheckpointInfo> all = catalog_.List();
  return std::any_of(all.begin(), all.end(), [](const CheckpointInfo& info) {
    return info.state == CheckpointState::kLoading;
  });
}

void Node::Drain() {
  draining_ = true;
}

uint64_t Node::Trim() {
  uint64_t freed = 0;
  for (ReadyMemory* const ready : options_.ready) freed += ready->Trim();
  DropReleased();
  return freed;
}

void Node::DropReleased() {
  if (dropping_.exchange(true)) return;
  load_worker_.Post([this] {
    dropping_ = false;
    options_.drop_released();
  });
}

absl::Status Node::CheckNotDraining() const {
  if (!draining_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, reason::kDraining,
                   fmt::format("rank {}: its daemon is draining and takes nothing new; use another "
                               "one, or start it again",
                               options_.identity.rank),
                   {{"rank", std::to_string(options_.identity.rank)}});
}

absl::Status Node::ClaimRequestId(const std::string& request_id, const IdentifiedRequest& asked,
                                  std::string& known_name) {
  if (request_id.empty()) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(CheckRequestId("loading", asked.request.source, request_id));
  MutexLock lock(requests_mutex_);
  const auto [at, claimed] = requests_.try_emplace(request_id, Remembered{asked.digest, "", 0});
  if (at->second.digest != asked.digest) {
    return MakeError(absl::StatusCode::kAlreadyExists, reason::kRequestIdReused,
                     fmt::format("loading {}: request id {} was used for another request; use a "
                                 "new id for each request",
                                 asked.request.source, request_id));
  }
  known_name = at->second.name;
  if (!claimed) return absl::OkStatus();
  at->second.order = ++request_order_;
  if (requests_.size() <= kRememberedRequests) return absl::OkStatus();
  requests_.erase(std::min_element(requests_.begin(), requests_.end(), [](auto& a, auto& b) {
    return a.second.order < b.second.order;
  }));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Catalog::Match>> Node::FindResident(const IdentifiedRequest& asked) {
  // Requests that wait for unused memory come before requests that would use it again.
  catalog_.eviction().MakeRoomForWaiting();
  const auto match = catalog_.FindMatch(asked);
  if (!match.has_value()) return match;
  if (!match->active) {
    if (coordinator_ != nullptr && coordinator_->IsOutOfDate(match->name)) {
      return std::optional<Catalog::Match>();
    }
    catalog_.watchers().ExtendGrace(match->name, Clock::now());
    return match;
  }
  const absl::Status status =
      lookups_.CheckFiles(asked.request.source, match->files, Clock::now() + timing::kFileCheck,
                          options_.reading.AccessFor(asked.request));
  if (status.ok()) return match;
  if (!IsDefinitive(status)) return status;
  Log(LogLevel::kInfo, "{} is not reused: {}", match->name, MessageOf(status));
  return std::optional<Catalog::Match>();
}

absl::StatusOr<std::string> Node::Propose(IdentifiedRequest asked) {
  LoadRequest& request = asked.request;
  if (request.proposal_id.empty()) request.proposal_id = RandomHex(8);
  if (coordinator_ != nullptr) return coordinator_->Propose(0, asked);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::min<std::chrono::nanoseconds>(request.timeout, timing::kProposal));
  const uint64_t since = catalog_.Tick();
  CKPTD_ASSIGN_OR_RETURN(std::string name, follower_->Propose(request, deadline));
  catalog_.Begin(name, asked, since);
  return name;
}

absl::StatusOr<Node::Found> Node::FillMissing(const Catalog::Match& match,
                                              const LoadRequest& request) {
  std::set<uint32_t> missing;
  if (coordinator_ != nullptr) {
    missing = coordinator_->FindMissing(match.name);
  } else {
    auto asked = follower_->FindMissing(match.name, Clock::now() + timing::kFindMissing);
    // Without a leader the answer is not known. Propose waits for one.
    if (asked.status().code() == absl::StatusCode::kUnavailable) asked = std::set<uint32_t>{0};
    CKPTD_RETURN_IF_ERROR(asked.status());
    missing = *std::move(asked);
  }
  if (missing.empty()) {
    catalog_.Complete(match.name);
    return Found{match.name, true};
  }
  Log(LogLevel::kInfo, "{}: rank {} has no shard of it and is filled again", match.name,
      fmt::join(missing, ", "));
  IdentifiedRequest again = match.asked;
  again.request.timeout = request.timeout;
  again.request.wait_memory = request.wait_memory;
  again.request.proposal_id.clear();
  // Files are opened for who asks now: those that an earlier job passed may be gone.
  again.request.guest = request.guest;
  again.request.job = request.job;
  again.request.passed = request.passed;
  const uint64_t since = catalog_.Tick();
  CKPTD_ASSIGN_OR_RETURN(const std::string name, Propose(again));
  catalog_.BeginFilling(name, since);
  return Found{name, false};
}

absl::StatusOr<Node::Found> Node::FindOrLoad(const IdentifiedRequest& asked) {
  const LoadRequest& request = asked.request;
  CKPTD_ASSIGN_OR_RETURN(const std::optional<Catalog::Match> match, FindResident(asked));
  if (!match.has_value()) {
    Found found{"", false, catalog_.NearMiss(request)};
    CKPTD_ASSIGN_OR_RETURN(found.name, Propose(asked));
    return found;
  }
  if (match->gathering) {
    // An earlier request may have had a shorter deadline; the leader waits for the latest one.
    IdentifiedRequest again = asked;
    again.request.proposal_id = match->asked.request.proposal_id;
    CKPTD_ASSIGN_OR_RETURN(std::string name, Propose(again));
    const bool same = name == match->name;
    return Found{std::move(name), same};
  }
  // In rank form each trainer asks for its own shard. An EXCLUSIVE shard is not there for others.
  const bool for_all = !IsRankForm(request) && request.intended != AttachMode::kExclusive;
  if (match->active && for_all && options_.identity.world_size > 1) {
    return FillMissing(*match, request);
  }
  return Found{match->name, true};
}

absl::StatusOr<Node::LoadReply> Node::Load(LoadRequest request, const std::string& request_id,
                                           bool hold) {
  CKPTD_RETURN_IF_ERROR(CheckNotDraining());
  CKPTD_RETURN_IF_ERROR(
      CheckRequest(request, options_.identity.rank, options_.identity.world_size));
  CKPTD_RETURN_IF_ERROR(catalog_.eviction().CheckKind(request));
  request.passed = options_.reading.AccessFor(request).IsPassed(request.source);
  const IdentifiedRequest asked(std::move(request));
  LoadReply reply;
  Found found;
  CKPTD_RETURN_IF_ERROR(ClaimRequestId(request_id, asked, found.name));
  if (!found.name.empty()) {
    if (hold) catalog_.leases().KeepFor(found.name, request_id);
    const auto info = catalog_.Get(found.name);
    if (info.ok()) return LoadReply{*info, true, {}};
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    CKPTD_ASSIGN_OR_RETURN(found, FindOrLoad(asked));
    // The checkpoint that was found may have been evicted meanwhile.
    if (!hold || catalog_.leases().KeepFor(found.name, request_id)) break;
  }
  if (!request_id.empty()) {
    MutexLock lock(requests_mutex_);
    const auto at = requests_.find(request_id);
    if (at != requests_.end()) at->second.name = found.name;
  }
  CKPTD_ASSIGN_OR_RETURN(reply.info, catalog_.Get(found.name));
  reply.resident = found.resident;
  reply.differs = std::move(found.differs);
  return reply;
}

absl::StatusOr<OpenedCheckpoint> Node::Inspect(const std::string& source, const CallContext& asker,
                                               const std::string& view) {
  CKPTD_RETURN_IF_ERROR(CheckSource("inspecting", source));
  CKPTD_ASSIGN_OR_RETURN(const SourceAccess access, AccessFor(asker, "inspecting", source));
  return queries_.Ask<OpenedCheckpoint>([=] { return OpenSeen(source, view, access); }, asker,
                                        "inspecting " + source, access.watch);
}

absl::StatusOr<GroupPlan> Node::Plan(const LoadRequest& request, const CallContext& asker) {
  CKPTD_RETURN_IF_ERROR(CheckSource("planning", request.source));
  CKPTD_ASSIGN_OR_RETURN(const SourceAccess access, AccessFor(asker, "planning", request.source));
  const auto plan = [request, own = options_.identity.rank, deadline = asker.deadline, access] {
    return PlanDry(request, own, deadline, kMaxDryRunCopies, access);
  };
  return queries_.Ask<GroupPlan>(plan, asker, "planning " + request.source, access.watch);
}

absl::StatusOr<DeviceMap> Node::Plan(const DeviceMapRequest& request, const CallContext& asker) {
  CKPTD_RETURN_IF_ERROR(CheckSource("planning", request.source));
  const std::string doing = "planning devices for";
  CKPTD_ASSIGN_OR_RETURN(const SourceAccess access, AccessFor(asker, doing, request.source));
  return queries_.Ask<DeviceMap>([=] { return PlanDevices(request, access); }, asker,
                                 doing + " " + request.source, access.watch);
}

absl::StatusOr<Verification> Node::Verify(const std::string& name, const CallContext& asker) {
  CKPTD_ASSIGN_OR_RETURN(const ShardLeases::Held held, catalog_.leases().Look(name));
  if (held.shard->digests.empty() && !held.shard->plan.tensors.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNoDigests,
                     fmt::format("verifying {}: it was loaded without digests; load it with them",
                                 name));
  }
  return queries_.Ask<Verification>([held, name] { return VerifyShard(name, held); }, asker,
                                    "verifying " + name);
}

absl::StatusOr<bool> Node::CancelLoad(const std::string& name) {
  const Deadline deadline = Clock::now() + timing::kCancel;
  Log(LogLevel::kInfo, "{}: its load is being cancelled on every rank", name);
  CKPTD_RETURN_IF_ERROR(coordinator_ != nullptr
                            ? coordinator_->CancelFor(options_.identity.rank, name)
                            : follower_->CancelLoad(name, deadline));
  catalog_.watchers().WatchEnd(name, deadline);
  CKPTD_ASSIGN_OR_RETURN(const CheckpointInfo info, catalog_.Get(name));
  if (info.state != CheckpointState::kLoading) return info.state == CheckpointState::kFailed;
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("unloading {}: its load was told to end and is still {}; it ends "
                               "when that step does (its storage may be slow), `ckptctl watch {}` "
                               "follows it",
                               name, NameOf(info.progress.stage), name),
                   {{"checkpoint", name}});
}

absl::StatusOr<Node::Unloaded> Node::Unload(const std::string& name, bool force, bool idle) {
  const auto info = catalog_.Get(name);
  const std::string loading = catalog_.LoadThatNeeds(name);
  if (force && !loading.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const bool ended, CancelLoad(loading));
    if (ended) return Unloaded{0, true};
  }
  CKPTD_ASSIGN_OR_RETURN(const uint64_t freed, catalog_.Unload(name, force, idle));
  host_tier_.Drop(info.ok() && !info->served_from.empty() ? info->served_from : name);
  load_worker_.Post([] {});  // gives the heap of its tables back
  return Unloaded{freed, false};
}

Node::Info Node::GetInfo() const {
  Info info;
  info.identity = options_.identity;
  info.memory = backend_.Usage();
  if (!options_.ready.empty()) info.arena_why = options_.ready.front()->Why();
  info.host_tier_budget = host_tier_.budget();
  info.host_tier_used = host_tier_.used();
  info.tier = backend_.tier();
  info.tier_reason = options_.tier_reason;
  info.device = backend_.device();
  if (options_.keeper != nullptr) info.keeper = options_.keeper->state();
  std::vector<uint32_t> missing;
  if (membership_ != nullptr) {
    info.epoch = membership_->epoch();
    info.members = membership_->Members();
    missing = membership_->MissingRanks();
  } else {
    const Follower::State state = follower_->state();
    info.epoch = state.epoch;
    info.detail = state.detail;
    missing = state.joined ? state.missing_ranks : std::vector<uint32_t>{0};
  }
  info.state = draining_ ? "DRAINING" : missing.empty() ? "READY" : "JOINING";
  if (info.detail.empty()) info.detail = stalls_.DescribeHeld();
  if (info.detail.empty() && !missing.empty()) {
    info.detail = fmt::format("waiting for rank {}", fmt::join(missing, ", "));
  }
  return info;
}

std::string Node::group_secret() const {
  return membership_ == nullptr ? follower_->secret() : membership_->secret();
}

absl::StatusOr<std::string> Node::TrainerKey(const std::optional<Caller>& guest) const {
  const std::string secret = group_secret();
  if (!secret.empty()) return DeriveTrainerKey(secret, UserOf(guest));
  return MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                   fmt::format("asking rank {}'s daemon for the group's key: it has not joined rank "
                               "0's daemon yet; see the logs of both if this lasts",
                               options_.identity.rank));
}

absl::StatusOr<std::shared_ptr<PreparedLoad>> Node::Receive(const SinkCall& call) {
  if (!SameSecret(group_secret(), call.secret)) {
    return MakeError(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid,
                     fmt::format("receiving from rank {}: the group's secret differs; one of the "
                                 "two daemons left the group, it joins again by itself",
                                 call.from_rank));
  }
  return rank_side_.Receive(call.epoch, call.name);
}

bool Node::WaitReady(Deadline deadline) const {
  if (follower_ != nullptr) return follower_->WaitReady(deadline);
  return membership_->WaitComplete(deadline);
}

absl::Status Node::CheckGroupEpoch(uint64_t epoch) {
  if (follower_ == nullptr || follower_->IsCurrent(epoch)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                   fmt::format("a call of epoch {} reached rank {} after a newer one; load again",
                               epoch, options_.identity.rank));
}

absl::StatusOr<PrepareReply> Node::Prepare(const PrepareCall& call, Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(CheckGroupEpoch(call.epoch));
  CKPTD_RETURN_IF_ERROR(CheckNotDraining());
  // By the time the worker gets to it, the leader may have ended the load.
  const uint64_t since = catalog_.Tick();
  return Await(load_worker_.Submit([this, call, since] { return rank_side_.Prepare(call, since); }),
               deadline, "preparing " + call.name);
}

absl::Status Node::Clear(const std::string& name, Deadline deadline) {
  auto done = load_worker_.Submit([this, name]() -> absl::StatusOr<bool> {
    CKPTD_RETURN_IF_ERROR(rank_side_.Clear(name));
    return true;
  });
  return Await(std::move(done), deadline, "clearing padding of " + name).status();
}

absl::StatusOr<ReadReport> Node::Read(const ExecuteCall& call) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<PreparedLoad> incoming,
                         rank_side_.Receive(call.epoch, call.name));
  auto read = load_worker_.Submit(
      [this, call, incoming] { return ReadForLeader(PartsOfReading(), *incoming, call); });
  return EndPart(Await(std::move(read), call.deadline, "reading for " + call.name));
}

absl::StatusOr<ReadReport> Node::EndPart(absl::StatusOr<ReadReport> report) {
  // The teardown comes after the failed load and before the next one, when nobody waits for the
  // error any more.
  if (!report.ok()) load_worker_.Post([this] { comms_.AwaitTeardown(); });
  return report;
}

MemberReading Node::PartsOfReading() {
  return {catalog_,        {peer_memory_, backend_, comms_}, options_.connect,
          options_.identity.rank, group_secret(),            options_.reading,
          stopping_,       own_reading_,                     load_worker_, stalls_};
}

absl::Status Node::ReceiveScatter(const ExecuteCall& call) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<PreparedLoad> incoming,
                         rank_side_.Receive(call.epoch, call.name));
  auto done = load_worker_.Submit([this, call, incoming]() -> absl::StatusOr<ReadReport> {
    CKPTD_RETURN_IF_ERROR(ckptd::ReceiveScatter(PartsOfReading(), *incoming, call));
    return ReadReport();
  });
  return EndPart(Await(std::move(done), call.deadline, "receiving " + call.name)).status();
}

absl::Status Node::Commit(const CommitCall& call, Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(CheckGroupEpoch(call.epoch));
  auto done = load_worker_.Submit([this, call]() -> absl::StatusOr<bool> {
    CKPTD_RETURN_IF_ERROR(rank_side_.Commit(call));
    return true;
  });
  return Await(std::move(done), deadline, "publishing " + call.name).status();
}

void Node::LeaderLost(const std::string& name, Deadline deadline) {
  if (Clock::now() < deadline) return catalog_.Fail(name, RankLost(0, "its transfer stream broke"));
  catalog_.Fail(name, MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                                fmt::format("loading {}: the timeout passed while bytes were read, "
                                            "and rank 0 has not said why (does its storage "
                                            "answer?); load again with a longer timeout",
                                            name),
                                {{"rank", "0"}}));
}

}  // namespace ckptd

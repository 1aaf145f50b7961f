#include "server/catalog/lease_table.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {

absl::StatusOr<LeaseTable::Ticket> LeaseTable::Open(const std::string& checkpoint,
                                                    AttachMode mode,
                                                    const std::string& request_id) {
  ExpireTokens();
  CKPTD_ASSIGN_OR_RETURN(ShardLeases::Held held, catalog_.leases().Hold(checkpoint, mode, request_id));
  Lease lease;
  lease.info.name = checkpoint + "/leases/" + RandomHex(8);
  lease.info.checkpoint = held.name;
  lease.info.mode = mode;
  lease.info.created = std::chrono::system_clock::now();
  lease.token = RandomHex(kTokenLength / 2);
  lease.token_expiry = Clock::now() + timing::kTokenLifetime;
  lease.memory = held.memory;
  lease.generation = held.generation;
  Ticket ticket{lease.info.name, lease.token, std::move(held)};
  MutexLock lock(mutex_);
  tokens_[lease.token] = lease.info.name;
  leases_[lease.info.name] = std::move(lease);
  return ticket;
}

absl::StatusOr<LeaseTable::Redeemed> LeaseTable::Redeem(const std::string& token, int32_t pid,
                                                        uint32_t uid) {
  ExpireTokens();
  Redeemed redeemed;
  std::shared_ptr<ShardMemory> memory;
  {
    MutexLock lock(mutex_);
    const auto at = tokens_.find(token);
    if (at == tokens_.end()) {
      return MakeError(absl::StatusCode::kUnauthenticated, reason::kTokenInvalid,
                       "fetching a shard's descriptors: the token is unknown, was used already or "
                       "has expired; acquire the shard again");
    }
    Lease& lease = leases_.at(at->second);
    tokens_.erase(at);
    lease.token.clear();
    lease.info.pid = pid;
    lease.info.uid = uid;
    lease.info.connected = true;
    redeemed.lease = lease.info.name;
    redeemed.mode = lease.info.mode;
    memory = lease.memory;
  }
  auto handle = memory->Export(redeemed.mode);
  if (!handle.ok()) {
    End(redeemed.lease);
    return handle.status();
  }
  redeemed.handle = std::move(handle).value();
  return redeemed;
}

void LeaseTable::Keep(const std::string& name, int connection) {
  LeaseInfo info;
  {
    MutexLock lock(mutex_);
    const auto at = leases_.find(name);
    // The client of an EXCLUSIVE lease owns the memory.
    if (at == leases_.end() || at->second.info.mode == AttachMode::kExclusive) return;
    info = at->second.info;
  }
  if (keeper_ != nullptr) keeper_->KeepLease(info, connection);
}

absl::Status LeaseTable::Restore(LeaseInfo info) {
  CKPTD_ASSIGN_OR_RETURN(ShardLeases::Held held, catalog_.leases().Hold(info.checkpoint, info.mode));
  Lease lease;
  lease.info = std::move(info);
  lease.info.connected = true;
  lease.memory = std::move(held.memory);
  lease.generation = held.generation;
  MutexLock lock(mutex_);
  leases_[lease.info.name] = std::move(lease);
  return absl::OkStatus();
}

void LeaseTable::HandedOver(const std::string& lease) {
  std::shared_ptr<ShardMemory> memory;
  std::string checkpoint;
  uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    const auto at = leases_.find(lease);
    if (at == leases_.end()) return;
    const AttachMode mode = at->second.info.mode;
    if (observer_ != nullptr) observer_->OnAttached(mode, Clock::now() - at->second.opened);
    if (mode != AttachMode::kExclusive) return;
    memory = at->second.memory;
    checkpoint = at->second.info.checkpoint;
    generation = at->second.generation;
  }
  memory->TransferOwnership();
  catalog_.leases().MarkTaken(checkpoint, generation);
  Log(LogLevel::kInfo, "{}: taken by an EXCLUSIVE client", checkpoint);
}

void LeaseTable::End(const std::string& lease) {
  std::shared_ptr<ShardMemory> memory;  // destroyed after the lock
  std::string checkpoint;
  uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    const auto at = leases_.find(lease);
    if (at == leases_.end()) return;
    checkpoint = at->second.info.checkpoint;
    generation = at->second.generation;
    memory = std::move(at->second.memory);
    if (!at->second.token.empty()) tokens_.erase(at->second.token);
    leases_.erase(at);
    changed_.NotifyAll();
  }
  Log(LogLevel::kDebug, "{}: ended", lease);
  memory.reset();  // before it is evicted for a load, which would find it in use
  if (keeper_ != nullptr) keeper_->DropLease(lease);
  catalog_.leases().Release(checkpoint, generation);
}

absl::Status LeaseTable::Release(const std::string& lease) {
  {
    MutexLock lock(mutex_);
    const auto at = leases_.find(lease);
    if (at == leases_.end()) return absl::OkStatus();
    if (at->second.info.connected) {
      const int32_t pid = at->second.info.pid;
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLeased,
                       fmt::format("releasing {}: the connection to {} holds it; the lease ends "
                                   "when that is closed",
                                   lease,
                                   pid == 0 ? std::string("a process in another PID namespace")
                                            : fmt::format("process {}", pid)));
    }
    tokens_.erase(std::exchange(at->second.token, ""));  // nobody shows it meanwhile
  }
  End(lease);
  return absl::OkStatus();
}

void LeaseTable::ExpireTokens() {
  std::vector<std::string> expired;
  {
    MutexLock lock(mutex_);
    const auto now = Clock::now();
    for (auto at = tokens_.begin(); at != tokens_.end();) {
      Lease& lease = leases_.at(at->second);
      if (lease.token_expiry > now) {
        ++at;
        continue;
      }
      lease.token.clear();
      expired.push_back(lease.info.name);
      at = tokens_.erase(at);  // now: nobody shows it before the lease has ended
    }
  }
  for (const std::string& lease : expired) {
    Log(LogLevel::kWarn, "{}: its token was not shown in time, lease ended", lease);
    End(lease);
  }
}

std::vector<LeaseInfo> LeaseTable::List() const {
  MutexLock lock(mutex_);
  std::vector<LeaseInfo> infos;
  for (const auto& [name, lease] : leases_) infos.push_back(lease.info);
  return infos;
}

std::vector<int32_t> LeaseTable::HoldersOf(const std::string& checkpoint) const {
  MutexLock lock(mutex_);
  std::set<int32_t> pids;
  for (const auto& [name, lease] : leases_) {
    if (lease.info.checkpoint == checkpoint && lease.info.pid != 0) pids.insert(lease.info.pid);
  }
  return {pids.begin(), pids.end()};
}

bool LeaseTable::Empty() const {
  MutexLock lock(mutex_);
  return leases_.empty();
}

size_t LeaseTable::WaitUntilEmpty(Deadline deadline) const {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || leases_.empty();
  });
  return leases_.size();
}

void LeaseTable::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

}  // namespace ckptd

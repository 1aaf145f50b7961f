#include "server/daemon/keeping.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "common/base/at_once.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "server/catalog/catalog.h"
#include "server/catalog/lease_table.h"
#include "server/keeper/keeper_wire.h"
#include "server/rpc/kept_record.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// An entry's name is the resource's.
bool IsLease(const std::string& name) { return name.find("/leases/") != std::string::npos; }

absl::Status Changed(const std::string& what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                   fmt::format("taking it over: {} of its memory are not those that were loaded; "
                               "load it again, and suspect memory or a process that wrote there",
                               what));
}

// Of the entry: its record, and the memory.
absl::StatusOr<std::vector<UniqueFd>> DescriptorsOf(const KeptCheckpoint& checkpoint,
                                                    ShardMemory& memory) {
  CKPTD_ASSIGN_OR_RETURN(KeptSlab slab, memory.Keep());
  CKPTD_ASSIGN_OR_RETURN(UniqueFd record, WriteRecord(ToProto(checkpoint, slab)));
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(record));
  std::move(slab.fds.begin(), slab.fds.end(), std::back_inserter(fds));
  return fds;
}

}  // namespace

Keeping::Keeping(std::unique_ptr<DescriptorStore> store, uint32_t rank, uint32_t world_size,
                 unsigned threads)
    : store_(std::move(store)), rank_(rank), world_size_(world_size), threads_(threads) {
  absl::StatusOr<StoredEntries> entries = store_->Entries();
  if (!entries.ok()) {
    Log(LogLevel::kError, "nothing is taken over: {}", MessageOf(entries.status()));
    return;
  }
  for (auto& [name, fds] : *entries) {
    Found found{.name = name, .fds = std::move(fds)};
    found.read = IsLease(name) ? ReadRecord(found.fds.front().get(), found.lease)
                               : ReadRecord(found.fds.front().get(), found.checkpoint);
    found_.push_back(std::move(found));
  }
}

KeptBytes Keeping::FoundBytes() const {
  KeptBytes bytes;
  for (const Found& found : found_) {
    const v1::KeptSlab& slab = found.checkpoint.slab();
    uint64_t& place = slab.device_uuid().empty() ? bytes.host : bytes.device;
    for (const uint64_t segment : slab.segment_bytes()) {
      place += (segment + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    }
  }
  return bytes;
}

void Keeping::Put(const std::string& name, std::vector<UniqueFd> fds) {
  {
    MutexLock lock(mutex_);
    kept_.insert(name);
  }
  store_->Put(name, std::move(fds));
}

void Keeping::Remove(const std::string& name) {
  {
    MutexLock lock(mutex_);
    if (left_.all || (left_.leases && IsLease(name))) return;
    kept_.erase(name);
  }
  store_->Remove(name);
}

void Keeping::Keep(const KeptCheckpoint& checkpoint, const std::shared_ptr<ShardMemory>& memory) {
  const std::string& name = checkpoint.info.name;
  if (checkpoint.shard->digests.size() != checkpoint.shard->plan.tensors.size()) {
    Log(LogLevel::kInfo, "{}: not kept for a later daemon, because it has no digests", name);
    return;
  }
  absl::StatusOr<std::vector<UniqueFd>> fds = DescriptorsOf(checkpoint, *memory);
  if (!fds.ok()) {
    Log(LogLevel::kInfo, "{}: not kept for a later daemon: {}", name, MessageOf(fds.status()));
    return;
  }
  memory->SetBeforeReuse([this, name] { Remove(name); });
  Put(name, *std::move(fds));
}

void Keeping::KeepLease(const LeaseInfo& lease, int connection) {
  absl::StatusOr<UniqueFd> record = WriteRecord(ToProto(lease));
  absl::StatusOr<UniqueFd> socket = DuplicateFd(connection, "duplicating a connection");
  if (!record.ok() || !socket.ok()) {
    Log(LogLevel::kWarn, "{}: not kept for a later daemon: {}", lease.name,
        MessageOf(record.ok() ? socket.status() : record.status()));
    return;
  }
  std::vector<UniqueFd> fds;
  fds.push_back(*std::move(record));
  fds.push_back(*std::move(socket));
  Put(lease.name, std::move(fds));
}

void Keeping::DropLease(const std::string& name) { Remove(name); }

void Keeping::LeaveLeases() {
  MutexLock lock(mutex_);
  left_.leases = true;
}

void Keeping::LeaveAll() {
  MutexLock lock(mutex_);
  left_.all = true;
}

KeeperState Keeping::state() const {
  KeeperState state;
  state.endpoint = store_->endpoint();
  state.connected = store_->connected();
  MutexLock lock(mutex_);
  state.leases = static_cast<uint32_t>(std::count_if(kept_.begin(), kept_.end(), IsLease));
  state.checkpoints = static_cast<uint32_t>(kept_.size()) - state.leases;
  state.dropped = dropped_;
  return state;
}

void Keeping::Drop(const std::string& name, const absl::Status& why) {
  const std::string sentence = fmt::format("{}: {}", name, MessageOf(why));
  Log(LogLevel::kWarn, "dropped what an earlier daemon has left: {} ({})", sentence, ReasonOf(why));
  store_->Remove(name);
  MutexLock lock(mutex_);
  dropped_.push_back(sentence);
}

void Keeping::Restore(Catalog& catalog, LeaseTable& leases) {
  const auto begun = std::chrono::steady_clock::now();
  if (found_.empty()) return;
  // Checkpoints first: the lease of a view holds the memory of another one.
  std::stable_partition(found_.begin(), found_.end(),
                        [](const Found& found) { return !IsLease(found.name); });
  for (Found& found : std::exchange(found_, {})) {
    absl::Status restored = found.read;
    if (restored.ok()) {
      restored = IsLease(found.name) ? RestoreLease(found, leases) : RestoreCheckpoint(found, catalog);
    }
    if (!restored.ok()) {
      Drop(found.name, restored);
      continue;
    }
    MutexLock lock(mutex_);
    kept_.insert(found.name);
  }
  const KeeperState now = state();
  Log(LogLevel::kInfo, "took over {} checkpoints and {} leases of an earlier daemon, {:.3f} s",
      now.checkpoints, now.leases,
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
}

absl::Status Keeping::RestoreCheckpoint(Found& found, Catalog& catalog) {
  const std::string name = found.name;
  CKPTD_ASSIGN_OR_RETURN(KeptFromRecord kept, FromProto(found.checkpoint, rank_, world_size_));
  if (kept.checkpoint.info.name != name) return Changed("the name and the record");
  kept.slab.fds.assign(std::make_move_iterator(found.fds.begin() + 1),
                       std::make_move_iterator(found.fds.end()));
  const HandleKind kind = kept.slab.kind;
  const bool sealed = kept.slab.sealed;
  std::unique_ptr<Slab> slab;
  if (kept.slab.bytes > 0) {
    CKPTD_ASSIGN_OR_RETURN(slab, memory_->Adopt(std::move(kept.slab)));
    CKPTD_RETURN_IF_ERROR(Check(*kept.checkpoint.shard, slab->view()));
  }
  auto memory = std::make_shared<ShardMemory>(*memory_, std::move(slab), kind);
  memory->ReleaseStaging();
  if (sealed) CKPTD_RETURN_IF_ERROR(memory->Seal());
  memory->SetBeforeReuse([this, name] { Remove(name); });
  catalog.Restore(std::move(kept.checkpoint), std::move(memory));
  return absl::OkStatus();
}

absl::Status Keeping::RestoreLease(Found& found, LeaseTable& leases) {
  if (found.fds.size() != 2) return Changed("the descriptors");
  CKPTD_ASSIGN_OR_RETURN(LeaseInfo lease, FromProto(found.lease));
  if (lease.name != found.name) return Changed("the name and the record");
  CKPTD_ASSIGN_OR_RETURN(const PeerCredentials who, CredentialsOf(found.fds[1].get()));
  lease.pid = who.pid;
  lease.uid = who.uid;
  CKPTD_RETURN_IF_ERROR(leases.Restore(std::move(lease)));
  connections_.push_back({std::move(found.fds[1]), found.name});
  return absl::OkStatus();
}

absl::Status Keeping::Check(const Shard& shard, const SlabView& view) const {
  const RankPlan& plan = shard.plan;
  std::vector<absl::Status> checked(plan.tensors.size());
  const auto check = [&](size_t i) {
    const PlannedTensor& tensor = plan.tensors[i];
    const auto digest = DigestInSlab(view, tensor.offset, tensor.bytes);
    if (!digest.ok()) {
      checked[i] = digest.status();
    } else if (*digest != shard.digests[i]) {
      checked[i] = Changed(fmt::format("the bytes of {}", tensor.name));
    }
  };
  std::atomic<size_t> next = 0;
  AtOnce(threads_, threads_, [&](size_t) {
    for (size_t i = next++; i < checked.size(); i = next++) check(i);
  });
  for (const absl::Status& status : checked) CKPTD_RETURN_IF_ERROR(status);
  CKPTD_ASSIGN_OR_RETURN(const std::set<uint32_t> dirty, DirtyPadding(plan, view));
  return dirty.empty() ? absl::OkStatus() : Changed("the zeros between tensors");
}

}  // namespace ckptd

#include "server/catalog/catalog_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Before the operations are dropped.
void NoteFiles(const CheckpointIndex& index, Shard& shard) {
  for (const SourceFile& file : index.files) shard.paths.push_back(file.path);
  const auto none = static_cast<uint32_t>(shard.paths.size());
  shard.file_of.assign(shard.plan.tensors.size(), none);
  for (const CopyOp& op : shard.plan.ops) {
    shard.file_of[op.tensor] = std::min(shard.file_of[op.tensor], op.file);
  }
}

absl::Status Gone(const std::string& name) {
  return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                   fmt::format("loading {}: it was loaded, and unloaded or evicted again, before "
                               "this call heard of it; load again",
                               name));
}

}  // namespace

bool CatalogEntry::Gathers() const {
  const Stage stage = info.progress.stage;
  return info.state == CheckpointState::kLoading && memory == nullptr &&
         (stage == Stage::kUnspecified || stage == Stage::kGathering ||
          stage == Stage::kWaitingForMemory);
}

std::optional<uint64_t> CatalogEntry::LoadsSince() const {
  if (filling.has_value()) return filling->begun;
  if (info.state != CheckpointState::kLoading) return std::nullopt;
  return generation;
}

bool CatalogEntry::Kept(std::optional<std::string_view> but_for) const {
  const auto now = Clock::now();
  return std::any_of(kept_for.begin(), kept_for.end(), [&](const auto& one) {
    return one.first != but_for && (!one.second.has_value() || *one.second > now);
  });
}

void CatalogEntry::KeepWhatIsShown() {
  asked = {};
  shard = nullptr;
  wanted.reset();
}

void CatalogEntry::NoteRequest() {
  info.source = asked.request.source;
  info.intended = asked.request.intended;
  info.digests = asked.request.digests;
  info.layout = DescribeLayout(asked.request);
  info.view = DescribeView(asked.request);
  info.loaded_for = UserOf(asked.request.guest);
}

void CatalogEntry::NoteShard(std::shared_ptr<const Shard> whole) {
  shard = std::move(whole);
  info.slab_bytes = shard->plan.slab_bytes;
  info.tensor_count = shard->plan.tensors.size();
  info.source_identity = IdentityOf(files);
  std::vector<uint64_t> facts = {asked.digest, info.source_identity};
  for (const SourceFile& file : files) facts.push_back(Xxh3(file.host));
  info.identity = CombineDigests(facts);
}

void CatalogEntry::NotePlan(const PrepareCall& call, Shard planned) {
  NoteFiles(*call.index, planned);
  planned.plan.ops = {};
  info.plan_digest = call.plan_digest;
  info.epoch = call.epoch;
  files = call.index->files;
  request_digests = call.request_digests;
  NoteShard(std::make_shared<Shard>(std::move(planned)));
}

CatalogEntry* CatalogTable::Find(const std::string& name) {
  const auto at = entries.find(name);
  return at == entries.end() ? nullptr : &at->second;
}

const CatalogEntry* CatalogTable::Find(const std::string& name) const {
  const auto at = entries.find(name);
  return at == entries.end() ? nullptr : &at->second;
}

void CatalogTable::BumpVersion(CatalogEntry& entry) {
  ++entry.version;
  entry.last_used = ++ticks;
  changed.NotifyAll();
}

CatalogEntry& CatalogTable::OwnerOf(CatalogEntry& entry) {
  CatalogEntry* const owner = entry.IsView() ? Find(entry.info.served_from) : nullptr;
  return owner == nullptr ? entry : *owner;
}

const CatalogEntry& CatalogTable::OwnerOf(const CatalogEntry& entry) const {
  const CatalogEntry* const owner = entry.IsView() ? Find(entry.info.served_from) : nullptr;
  return owner == nullptr ? entry : *owner;
}

CheckpointInfo CatalogTable::InfoOf(const CatalogEntry& entry) const {
  CheckpointInfo info = entry.info;
  if (entry.filling.has_value()) {
    info.state = CheckpointState::kLoading;
    info.progress = entry.filling->progress;
  }
  const CatalogEntry& owner = OwnerOf(entry);
  info.leases = owner.info.leases;
  info.pinned = owner.info.pinned;
  return info;
}

void CatalogTable::Erase(const std::string& name) {
  for (auto at = entries.begin(); at != entries.end();) {
    const bool goes = at->first == name || at->second.info.served_from == name;
    if (goes) tombstones.Add(at->first, Gone(at->first), ++ticks);
    at = goes ? entries.erase(at) : std::next(at);
  }
}

const CatalogEntry* CatalogTable::Unended(const CatalogEntry& owner) const {
  if (owner.LoadsSince().has_value()) return &owner;
  for (const auto& [name, entry] : entries) {
    if (entry.filling.has_value() && entry.info.served_from == owner.info.name) return &entry;
  }
  return nullptr;
}

void CatalogTable::StartKeeping(CatalogEntry& owner) const {
  if (Unended(owner) != nullptr) return;
  for (auto& [request, until] : owner.kept_for) {
    if (until.has_value()) continue;
    until = Clock::now() + std::chrono::duration_cast<Clock::duration>(kept);
  }
}

absl::Status CheckpointNotFound(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, reason::kCheckpointNotFound,
                   fmt::format("looking up {}: this daemon holds no such checkpoint (it may have "
                               "been unloaded or evicted); load it again, or list what is there",
                               name),
                   {{"checkpoint", name}});
}

std::string LeasesText(uint32_t count) {
  return count == 1 ? "1 lease is" : fmt::format("{} leases are", count);
}

absl::Status NotActive(std::string_view doing, const CheckpointInfo& info,
                       std::string_view otherwise) {
  const Facts facts = {{"checkpoint", info.name}, {"state", std::string(NameOf(info.state))}};
  switch (info.state) {
    case CheckpointState::kFailed:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kLoadFailed,
                       fmt::format("{} {}: its load failed: {}", doing, info.name,
                                   MessageOf(info.failure)),
                       facts);
    case CheckpointState::kTaken:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                       fmt::format("{} {}: an EXCLUSIVE client took its memory; load the source "
                                   "again",
                                   doing, info.name),
                       facts);
    default:
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotActive,
                       fmt::format("{} {}: it is {} ({}); wait until it has ended, `ckptctl watch "
                                   "{}` follows it{}",
                                   doing, info.name, NameOf(info.state),
                                   NameOf(info.progress.stage), info.name, otherwise),
                       facts);
  }
}

}  // namespace ckptd

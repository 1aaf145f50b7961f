#include "server/core/part_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr std::chrono::seconds kMapDeadline{8};

// Pages are made for what a rank announces, so it may announce what its shard takes.
absl::Status CheckAnnounced(const ReadTarget& target) {
  if (!target.prepared.device.empty()) return absl::OkStatus();  // no pages of ours
  uint64_t left = target.plan->slab_bytes;
  for (const PeerSlab::PeerSegment& segment : target.prepared.segments) {
    if (segment.bytes > left) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("mapping the memory of rank {}: it announces more than the {} "
                                   "bytes of its shard; see that all daemons have one version",
                                   target.who.rank, target.plan->slab_bytes));
    }
    left -= segment.bytes;
  }
  return absl::OkStatus();
}

}  // namespace

PartReader::PartReader(Parts parts, Load load, std::vector<ReadTarget> targets)
    : parts_(std::move(parts)), load_(std::move(load)), targets_(std::move(targets)) {}

absl::Status PartReader::Reach() {
  for (const ReadTarget& target : targets_) {
    TransferTarget reached;
    const absl::Status status = ReachOne(target, reached);
    if (!status.ok()) {
      const uint32_t rank = target.who.rank;
      if (FactsOf(status).count("rank") > 0) return status;
      return WithFact(WithContext(status, fmt::format("rank {}", rank)), "rank",
                      std::to_string(rank));
    }
    reached_.push_back(std::move(reached));
    ranks_.push_back(target.plan);
  }
  return absl::OkStatus();
}

absl::Status PartReader::ReachOne(const ReadTarget& target, TransferTarget& reached) {
  if (target.who.rank == parts_.rank) {
    const std::shared_ptr<ShardMemory> own = parts_.catalog.LoadingMemory(load_.name);
    if (own == nullptr) return CheckpointNotFound(load_.name);
    reached.slab = own->View();
    return absl::OkStatus();
  }
  CKPTD_RETURN_IF_ERROR(CheckAnnounced(target));
  parts_.peer_memory.KeepOnly(target.who.rank, target.prepared.owned_segments);
  auto view = parts_.peer_memory.Map(
      {target.who.rank, target.who.incarnation, target.prepared.memory_endpoint, target.who.host,
       target.prepared.device, target.prepared.segments},
      std::min<Deadline>(load_.deadline, Clock::now() + kMapDeadline));
  if (view.ok()) {
    reached.slab = *std::move(view);
    return absl::OkStatus();
  }
  if (view.status().code() != absl::StatusCode::kFailedPrecondition) return view.status();
  Log(LogLevel::kInfo, "{}: rank {} gets its bytes in streams: {}", load_.name, target.who.rank,
      MessageOf(view.status()));
  sinks_.push_back(target.link->OpenSink(
      {load_.epoch, load_.name, parts_.secret, parts_.rank, load_.deadline}));
  reached.sink = sinks_.back().get();
  return absl::OkStatus();
}

ReadReport PartReader::Begun() const {
  ReadReport report;
  report.reader = parts_.rank;
  for (size_t i = 0; i < reached_.size(); ++i) {
    report.filled.push_back({targets_[i].who.rank, 0, reached_[i].sink != nullptr, {}});
  }
  return report;
}

absl::StatusOr<ReadReport> PartReader::Read(const TransferOptions& options,
                                            TransferProgress& progress) {
  CKPTD_ASSIGN_OR_RETURN(TransferResult result,
                         RunTransfer(*load_.plan, ranks_, reached_, options, progress));
  ReadReport report = Begun();
  report.storage_bytes = result.storage_bytes;
  report.mapped_bytes = progress.mapped_bytes;
  report.direct_bytes = progress.direct_bytes;
  for (size_t i = 0; i < report.filled.size(); ++i) {
    report.filled[i].bytes = result.done[i];
    if (!result.digests.empty()) report.filled[i].digests = std::move(result.digests[i]);
  }
  sinks_.clear();
  return report;
}

}  // namespace ckptd

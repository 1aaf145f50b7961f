#include "server/load/part_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/collective/scatter_reader.h"
#include "server/protocol/timing.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// Pages are made for what a rank announces, so it may announce what its shard takes.
absl::Status CheckAnnounced(const ReadTarget& target) {
  if (!target.prepared.device.empty()) return absl::OkStatus();  // no pages of ours
  uint64_t left = target.plan->slab_bytes;
  for (const PeerSlab::PeerSegment& segment : target.prepared.segments) {
    if (segment.bytes > left) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("mapping the memory of rank {}: it announces segments larger "
                                   "than its shard of {} bytes; run the same ckptd version on "
                                   "every rank",
                                   target.who.rank, target.plan->slab_bytes));
    }
    left -= segment.bytes;
  }
  return absl::OkStatus();
}

}  // namespace

PartReader::PartReader(Parts parts, Load load, std::vector<ReadTarget> targets)
    : parts_(std::move(parts)), load_(std::move(load)), targets_(std::move(targets)) {}

absl::Status PartReader::Connect() {
  std::map<size_t, std::string> far;
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (load_.interrupted) CKPTD_RETURN_IF_ERROR(load_.interrupted());
    const ReadTarget& target = targets_[i];
    const uint32_t rank = target.who.rank;
    reached_.emplace_back();
    ranks_.push_back(target.plan);
    if (parts_.comm == CommChoice::kNccl && rank != parts_.rank) {
      far[i] = "asked for";
      continue;
    }
    const absl::Status status = ConnectOne(target, reached_.back());
    if (status.ok()) continue;
    if (status.code() == absl::StatusCode::kFailedPrecondition) {
      far[i] = MessageOf(status);
      continue;
    }
    if (FactsOf(status).count("rank") > 0) return status;
    return WithFact(WithContext(status, fmt::format("rank {}", rank)), "rank",
                    std::to_string(rank));
  }
  return ConnectRemote(far);
}

bool PartReader::CanUseCommunicator(const ReadTarget& target) const {
  return parts_.comm != CommChoice::kHost && !parts_.peers.comms.version().empty() &&
         target.prepared.communicator == parts_.peers.comms.version();
}

absl::Status PartReader::ConnectRemote(const std::map<size_t, std::string>& why) {
  bool leave = true;  // all or none: what is carried step by step is not streamed
  for (const auto& [i, reason] : why) {
    const ReadTarget& target = targets_[i];
    const bool may = CanUseCommunicator(target);
    leave = leave && may;
    if (may || parts_.comm != CommChoice::kNccl) continue;
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kNoNccl,
        fmt::format("reaching rank {} by --comm nccl: rank {} has {}, that rank {}; install the "
                    "same NCCL on every rank, or use --comm auto",
                    target.who.rank, parts_.rank,
                    parts_.peers.comms.version().empty() ? parts_.peers.comms.why_none()
                                                   : parts_.peers.comms.version(),
                    target.prepared.communicator.empty() ? target.prepared.no_communicator
                                                         : target.prepared.communicator),
        {{"rank", std::to_string(target.who.rank)}});
  }
  for (const auto& [i, reason] : why) {
    const ReadTarget& target = targets_[i];
    Log(LogLevel::kInfo, "{}: rank {} gets its bytes {}: {}{}", load_.name, target.who.rank,
        leave ? "by " + parts_.peers.comms.version() : "in streams", reason,
        parts_.no_comm.empty() ? "" : "; " + parts_.no_comm);
    if (leave) {
      via_communicator_.push_back(target.who.rank);
      continue;
    }
    sinks_.push_back(target.link->OpenSink(
        {load_.epoch, load_.name, parts_.secret, parts_.rank, load_.deadline}));
    reached_[i].sink = sinks_.back().get();
  }
  return absl::OkStatus();
}

bool PartReader::GoesViaCommunicator(uint32_t rank) const {
  return std::binary_search(via_communicator_.begin(), via_communicator_.end(), rank);
}

absl::Status PartReader::ConnectOne(const ReadTarget& target, TransferTarget& reached) {
  if (target.who.rank == parts_.rank) {
    own_ = parts_.catalog.LoadingMemory(load_.name);
    if (own_ == nullptr) return CheckpointNotFound(load_.name);
    reached.slab = own_->View();
    return absl::OkStatus();
  }
  CKPTD_RETURN_IF_ERROR(CheckAnnounced(target));
  parts_.peers.memory.KeepOnly(target.who.rank, target.prepared.owned_segments);
  auto view = parts_.peers.memory.Map(
      {target.who.rank, target.who.incarnation, target.prepared.memory_endpoint, target.who.host,
       target.prepared.device, target.prepared.segments},
      std::min<Deadline>(load_.deadline, Clock::now() + timing::kMapSlab));
  CKPTD_RETURN_IF_ERROR(view.status());
  reached.slab = *std::move(view);
  return absl::OkStatus();
}

uint64_t PartReader::own_bytes() const {
  uint64_t bytes = 0;
  if (own_ == nullptr) return bytes;
  for (const Segment& segment : own_->Segments()) bytes += segment.bytes;
  return bytes;
}

PartReader::~PartReader() {
  if (kept_ || reached_.empty()) return;  // empty also of one that was moved from
  reached_.clear();
  for (const ReadTarget& target : targets_) {
    if (target.who.rank == parts_.rank) continue;
    std::vector<uint64_t> kept = target.prepared.owned_segments;
    for (const auto& segment : target.prepared.segments) {
      kept.erase(std::remove(kept.begin(), kept.end(), segment.id), kept.end());
    }
    parts_.peers.memory.KeepOnly(target.who.rank, kept);
  }
}

ReadReport PartReader::Begun() const {
  ReadReport report;
  report.reader = parts_.rank;
  for (size_t i = 0; i < reached_.size(); ++i) {
    const uint32_t rank = targets_[i].who.rank;
    report.filled.push_back({rank, 0, reached_[i].sink != nullptr || GoesViaCommunicator(rank), {}});
  }
  return report;
}

absl::StatusOr<ReadReport> PartReader::Read(const TransferOptions& options,
                                            const ScatterCall* scatter,
                                            TransferProgress& progress) {
  absl::StatusOr<TransferResult> ended =
      scatter != nullptr ? Scatter(options, *scatter, progress)
                         : RunTransfer(*load_.plan, ranks_, reached_, options, progress);
  CKPTD_RETURN_IF_ERROR(ended.status());
  TransferResult result = *std::move(ended);
  ReadReport report = Begun();
  report.read = progress.read();
  for (size_t i = 0; i < report.filled.size(); ++i) {
    report.filled[i].bytes = result.done[i];
    if (!result.digests.empty()) report.filled[i].digests = std::move(result.digests[i]);
  }
  sinks_.clear();
  return report;
}

absl::StatusOr<TransferResult> PartReader::Scatter(const TransferOptions& options,
                                                   const ScatterCall& call,
                                                   TransferProgress& progress) {
  ScatterReader::Parts parts{parts_.peers.transit, parts_.peers.comms, load_.name, load_.deadline,
                             *load_.plan,
                             [this](uint64_t bytes, const absl::Status& refused) {
                               return parts_.catalog.eviction().MakeRoom(bytes, refused);
                             }};
  ScatterReader reader(std::move(parts), call);
  for (size_t i = 0; i < targets_.size(); ++i) {
    const uint32_t rank = targets_[i].who.rank;
    reader.Add({rank, i, targets_[i].plan, reached_[i].slab, rank == parts_.rank});
  }
  CKPTD_ASSIGN_OR_RETURN(TransferResult result, reader.Run(options, progress));
  carried_bytes_ = reader.carried_bytes();
  result.done.resize(targets_.size());
  return result;
}

}  // namespace ckptd

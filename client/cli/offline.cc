#include "client/cli/offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "client/cli/text.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/checkpoint/open.h"
#include "common/checkpoint/path_text.h"
#include "common/plan/group_plan.h"

namespace ckptd::cli {
namespace {

uint64_t BytesOf(const TensorEntry& tensor) {
  uint64_t bytes = 0;
  for (const Piece& piece : tensor.pieces) bytes += piece.bytes;
  return bytes;
}

uint64_t SourceBytes(const CheckpointIndex& index) {
  uint64_t bytes = 0;
  for (const TensorEntry& tensor : index.tensors) bytes += BytesOf(tensor);
  return bytes;
}

RankBytes ToRankBytes(const PlannedRank& plan) {
  RankBytes out;
  out.rank = static_cast<int32_t>(plan.rank);
  out.slab_bytes = plan.slab_bytes;
  out.tensor_bytes = plan.tensor_bytes;
  out.tensor_count = static_cast<uint32_t>(plan.tensors);
  // Rank 0 reads, and its own bytes are sent to nobody.
  out.received_bytes = plan.rank == 0 ? 0 : plan.tensor_bytes;
  return out;
}

std::vector<std::string> WarningsOf(const PlanSummary& summary, uint64_t source_bytes,
                                    bool casts_down) {
  std::vector<std::string> warnings;
  if (summary.storage_bytes < source_bytes) {
    warnings.push_back(fmt::format("{} of the source are not asked for by any rank",
                                   HumanBytes(source_bytes - summary.storage_bytes)));
  }
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t most = 0;
  std::vector<int32_t> empty;
  for (const RankBytes& rank : summary.ranks) {
    if (rank.tensor_bytes == 0) empty.push_back(rank.rank);
    least = std::min(least, rank.tensor_bytes);
    most = std::max(most, rank.tensor_bytes);
  }
  if (!empty.empty()) {
    warnings.push_back(fmt::format("rank{} {} receive{} no bytes", empty.size() > 1 ? "s" : "",
                                   fmt::join(empty, ", "), empty.size() > 1 ? "" : "s"));
  } else if (most / 2 > least) {
    warnings.push_back(fmt::format("the ranks' shares differ more than twofold: {} to {}",
                                   HumanBytes(least), HumanBytes(most)));
  }
  if (casts_down) {
    warnings.push_back("some tensors are cast to a smaller dtype, which rounds their values");
  }
  return warnings;
}

}  // namespace

SourceInfo ToSourceInfo(const CheckpointIndex& index) {
  SourceInfo out;
  out.source = TextOfPath(index.source);
  for (const SourceFile& file : index.files) {
    out.files.push_back({TextOfPath(file.path), file.bytes});
  }
  out.tensor_count = index.tensors.size();
  out.tensors.reserve(index.tensors.size());
  for (const TensorEntry& tensor : index.tensors) {
    SourceTensor entry;
    entry.name = tensor.name;
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    entry.bytes = BytesOf(tensor);
    if (!tensor.pieces.empty()) {
      entry.file = tensor.pieces.front().file;
      entry.offset = tensor.pieces.front().offset;
    }
    out.tensor_bytes += entry.bytes;
    out.tensors.push_back(std::move(entry));
  }
  out.identity = HexDigest(IdentityOf(index.files));
  out.aliases = index.aliases;
  out.metadata = index.metadata;
  return out;
}

absl::StatusOr<OpenedCheckpoint> OpenNamed(const std::string& named) {
  CKPTD_ASSIGN_OR_RETURN(const std::string path, AbsolutePath(named));
  return OpenWithRemarks(path);
}

absl::StatusOr<SourceInfo> InspectOffline(const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenNamed(source));
  SourceInfo out = ToSourceInfo(opened.index);
  out.remarks = std::move(opened.remarks);
  return out;
}

void PrintRemarks(const std::vector<std::string>& remarks, std::ostream& out) {
  for (const std::string& remark : remarks) out << "note: " << Escape(remark) << '\n';
}

absl::StatusOr<OfflinePlan> PlanOffline(const std::string& source, const std::string& layout,
                                        const DtypePolicy& policy) {
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules, LayoutRules::Parse(layout));
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenNamed(source));
  const auto index = std::make_shared<const CheckpointIndex>(std::move(opened.index));
  std::vector<uint32_t> ranks(rules.world_size());
  std::iota(ranks.begin(), ranks.end(), 0u);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Cohort> cohorts, rules.ForRanks(*index, ranks));
  CKPTD_ASSIGN_OR_RETURN(const GroupPlan plan, GroupPlan::Make(index, cohorts, policy));
  OfflinePlan out;
  bool casts_down = false;
  for (const PlannedRank& rank : plan.ranks()) {
    out.summary.ranks.push_back(ToRankBytes(rank));
    out.summary.peak_rank_bytes = std::max(out.summary.peak_rank_bytes, rank.slab_bytes);
    out.summary.total_slab_bytes += rank.slab_bytes;
    casts_down = casts_down || rank.casts_down;
  }
  const std::vector<uint64_t> read = plan.ReadBytes();
  for (size_t i = 0; i < index->files.size(); ++i) {
    out.summary.files.push_back({TextOfPath(index->files[i].path), read[i]});
    out.summary.storage_bytes += read[i];
  }
  out.summary.distinct_bytes = plan.DistinctBytes();
  out.summary.plan_digest = HexDigest(plan.digest());
  out.warnings = WarningsOf(out.summary, SourceBytes(*index), casts_down);
  return out;
}

}  // namespace ckptd::cli

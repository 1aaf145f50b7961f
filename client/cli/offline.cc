#include "client/cli/offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <system_error>
#include <utility>

#include "client/cli/text.h"
#include "common/base/escape.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/plan/view/sets.h"
#include "common/plan/view/view.h"
#include "common/source/open.h"
#include "common/source/piece.h"
#include "common/wire/plan.h"

namespace ckptd::cli {
namespace {

void AddWarnings(uint64_t source_bytes, bool casts_down, PlanOutput& out) {
  const v1::PlanLoadResponse& plan = out.plan();
  if (plan.storage_bytes() < source_bytes) {
    out.add_warnings(fmt::format("{} of the source are not asked for by any rank",
                                 HumanBytes(source_bytes - plan.storage_bytes())));
  }
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t most = 0;
  std::vector<int32_t> empty;
  for (const v1::RankPlan& rank : plan.ranks()) {
    if (rank.tensor_bytes() == 0) empty.push_back(rank.rank());
    least = std::min(least, rank.tensor_bytes());
    most = std::max(most, rank.tensor_bytes());
  }
  if (!empty.empty()) {
    out.add_warnings(fmt::format("rank{} {} receive{} no bytes", empty.size() > 1 ? "s" : "",
                                 fmt::join(empty, ", "), empty.size() > 1 ? "" : "s"));
  } else if (most / 2 > least) {
    out.add_warnings(fmt::format("the ranks' shares differ more than twofold: {} to {}",
                                 HumanBytes(least), HumanBytes(most)));
  }
  if (casts_down) {
    out.add_warnings("some tensors are cast to a smaller dtype, which rounds their values");
  }
}

}  // namespace

uint64_t BytesOf(const TensorEntry& tensor) {
  uint64_t bytes = 0;
  for (const Piece& piece : tensor.pieces) bytes += piece.bytes;
  return bytes;
}

uint64_t BytesOf(const CheckpointIndex& index) {
  uint64_t bytes = 0;
  for (const TensorEntry& tensor : index.tensors) bytes += BytesOf(tensor);
  return bytes;
}

std::vector<uint64_t> UnusedBytes(const CheckpointIndex& index) {
  using Range = std::pair<uint64_t, uint64_t>;
  std::vector<std::vector<Range>> used(index.files.size());
  for (const TensorEntry& tensor : index.tensors) {
    for (const Piece& piece : tensor.pieces) {
      used[piece.file].emplace_back(piece.offset, piece.offset + SpanOf(piece, tensor.dtype));
    }
  }
  std::vector<uint64_t> unused(index.files.size());
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i].empty()) continue;
    std::sort(used[i].begin(), used[i].end());
    uint64_t end = 0;
    for (const auto& [from, to] : used[i]) {
      unused[i] += from > end ? from - end : 0;
      end = std::max(end, to);
    }
    unused[i] += index.files[i].bytes - std::min(end, index.files[i].bytes);
  }
  return unused;
}

void AddViewOption(CLI::App& verb, std::string& view) {
  verb.add_option("--view", view,
                  "See the checkpoint with other names, axes or tensors: a file of rules (FILE.json "
                  "or @FILE), their JSON, or a set's name (deploy/formats.md)")
      ->type_name("VIEW");
  // Options act in the order in which they are added.
  verb.add_flag_callback("--inverse", [&view] { view = std::string(view::kInverse) + view; },
                         "See it as what the view makes it of")
      ->needs("--view");
}

absl::StatusOr<std::string> ViewText(const std::string& view, const std::string& source) {
  const std::string prefix(view.starts_with(view::kInverse) ? view::kInverse : "");
  std::string text = view.substr(prefix.size());
  if (view::IsName(text)) {
    const std::filesystem::path path(source);
    std::error_code ignored;
    const auto folder = std::filesystem::is_directory(path, ignored) ? path : path.parent_path();
    const auto config = ReadSmallFile((folder / "config.json").string(), view::kMaxViewBytes);
    if (config.ok()) text = view::WithConfig(text, *config);
  } else if (!text.empty() && text.front() != '{') {
    CKPTD_ASSIGN_OR_RETURN(
        text, ReadSmallFile(text.substr(text.front() == '@' ? 1 : 0), view::kMaxViewBytes));
  }
  text = prefix + text;
  CKPTD_RETURN_IF_ERROR(view::ReadView(text).status());
  return text;
}

absl::StatusOr<OpenedCheckpoint> OpenNamed(const std::string& named, const std::string& view) {
  CKPTD_ASSIGN_OR_RETURN(const std::string path, AbsolutePath(named));
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ViewText(view, path));
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenWithRemarks(path));
  CKPTD_ASSIGN_OR_RETURN(opened.index, view::SeenThrough(text, std::move(opened.index)));
  return opened;
}

absl::StatusOr<SourceInfo> InspectOffline(const std::string& source, const std::string& view) {
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenNamed(source, view));
  SourceInfo out;
  out.identity = HexDigest(IdentityOf(opened.index.files));
  out.tensor_count = opened.index.tensors.size();
  out.tensor_bytes = BytesOf(opened.index);
  out.value_count = opened.index.values.size();
  out.opaque_count = opened.index.opaque.size();
  out.index = std::move(opened.index);
  out.remarks = std::move(opened.remarks);
  return out;
}

void PrintRemarks(const std::vector<std::string>& remarks, std::ostream& out) {
  for (const std::string& remark : remarks) out << "note: " << Escape(remark) << '\n';
}

absl::StatusOr<OfflinePlan> PlanOffline(const std::string& source, const std::string& view,
                                        const std::string& layout, const DtypePolicy& policy) {
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules, LayoutRules::Parse(layout));
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenNamed(source, view));
  const auto index = std::make_shared<const CheckpointIndex>(std::move(opened.index));
  std::vector<uint32_t> ranks(rules.world_size());
  std::iota(ranks.begin(), ranks.end(), 0u);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Cohort> cohorts, rules.ForRanks(*index, ranks));
  CKPTD_ASSIGN_OR_RETURN(GroupPlan plan, GroupPlan::Make(index, cohorts, policy));
  return OfflinePlan{std::move(plan), std::move(opened.remarks)};
}

PlanOutput ToOutput(const GroupPlan& plan) {
  PlanOutput out;
  *out.mutable_plan() = ToProto(plan);
  const auto casts_down = [](const PlannedRank& rank) { return rank.casts_down; };
  AddWarnings(BytesOf(plan.index()), std::any_of(plan.ranks().begin(), plan.ranks().end(), casts_down),
              out);
  return out;
}

}  // namespace ckptd::cli

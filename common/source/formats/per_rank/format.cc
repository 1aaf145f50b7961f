#include "common/source/formats/per_rank/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/per_rank/series.h"
#include "common/source/ranks/merge.h"
#include "common/source/ranks/shards.h"

namespace ckptd {
namespace {

using per_rank::Series;
using ranks::RankState;

constexpr char kOptimizer[] = "optimizer";
constexpr char kExtra[] = "extra";

// In the order of their names, as files of an index are.
std::vector<std::string> NamesOf(const Series& series) {
  std::vector<std::string> names;
  for (const auto& [rank, name] : series.files) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status CheckRanks(const Listing& listing, const Series& series,
                        const std::vector<uint32_t>& ranks) {
  const std::vector<std::string> missing = per_rank::MissingOf(series, ranks);
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(listing.source, missing,
                      "copy them there from the nodes that saved them, all ranks are needed");
}

// By the names alone: all below the number of ranks, or below the last one that is there.
absl::Status CheckNames(const Listing& listing, const Series& series) {
  const uint32_t count = series.ranks > 0 ? series.ranks : series.files.rbegin()->first + 1;
  if (count > kMaxSourceFiles) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: its files are of {} ranks, at most {} are read",
                                 listing.source, count, kMaxSourceFiles),
                     {{"file", listing.source}});
  }
  std::vector<uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0U);
  return CheckRanks(listing, series, ranks);
}

}  // namespace

bool PerRankFormat::Recognise(const Storage& storage, const Listing& listing) const {
  if (!listing.is_folder || (listing.part.empty() && HasUsualWeights(listing))) return false;
  const std::vector<Series> all = per_rank::SeriesOf(listing.names);
  const auto chosen = per_rank::ChooseSeries(listing);
  const bool has_part = std::any_of(all.begin(), all.end(), [&](const Series& series) {
    return series.part == (listing.part.empty() ? "model" : listing.part);
  });
  // Several saves are recognised, too: Check says which there are.
  if (!chosen.ok() || chosen->files.empty()) return has_part;
  const auto object = storage.Open(listing.source + "/" + chosen->files.begin()->second);
  return object.ok() && torch::IsTorchFile(**object);
}

absl::Status PerRankFormat::Check(const Storage& /*storage*/, const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const Series series, per_rank::ChooseSeries(listing));
  return CheckNames(listing, series);
}

absl::StatusOr<OpenedCheckpoint> PerRankFormat::ReadIndex(const Storage& storage,
                                                          const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const Series series, per_rank::ChooseSeries(listing));
  CKPTD_RETURN_IF_ERROR(CheckNames(listing, series));
  const std::vector<std::string> names = NamesOf(series);
  std::vector<SourceFile> files(names.size());
  const bool own_names = series.part == kExtra;
  ranks::BoxBudget budget;
  ranks::Merger merger(listing.source, own_names);
  for (const auto& [rank, name] : series.files) {
    const std::string prefix = own_names ? fmt::format("rank_{}", rank) : "";
    CKPTD_ASSIGN_OR_RETURN(
        const torch::File file, torch::ReadFile(storage, listing.source + "/" + name));
    CKPTD_ASSIGN_OR_RETURN(RankState state, ranks::RankStateOf(file, prefix, budget));
    const std::vector<uint32_t> ranks(state.ranks.begin(), state.ranks.end());
    CKPTD_RETURN_IF_ERROR(CheckRanks(listing, series, ranks));
    const auto at = std::lower_bound(names.begin(), names.end(), name) - names.begin();
    files[static_cast<size_t>(at)] = state.file;
    CKPTD_RETURN_IF_ERROR(merger.Add(std::move(state), static_cast<uint32_t>(at)));
  }
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint out, merger.Finish());
  out.index.files = std::move(files);
  if (series.part == kOptimizer) {
    out.index.groups.emplace_back(kOptimizer);
    for (TensorEntry& tensor : out.index.tensors) {
      tensor.kind = EntryKind::kOptimizer;
      tensor.group = 1;
    }
  }
  CKPTD_RETURN_IF_ERROR(FinishTensors(out.index));
  return out;
}

absl::StatusOr<bool> PerRankFormat::StillMeans(const Storage& /*storage*/, const Listing& listing,
                                               const std::vector<SourceFile>& files) const {
  CKPTD_ASSIGN_OR_RETURN(const Series series, per_rank::ChooseSeries(listing));
  const std::vector<std::string> names = NamesOf(series);
  return std::equal(files.begin(), files.end(), names.begin(), names.end(),
                    [&](const SourceFile& file, const std::string& name) {
                      return file.path == listing.source + "/" + name;
                    });
}

}  // namespace ckptd

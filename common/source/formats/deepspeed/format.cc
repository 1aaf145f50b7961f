#include "common/source/formats/deepspeed/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/deepspeed/assemble.h"
#include "common/source/formats/deepspeed/files.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

using deepspeed::StateFiles;
using deepspeed::States;

constexpr char kLatest[] = "latest";
constexpr char kLatestUniversal[] = "latest_universal";
constexpr size_t kMaxTagBytes = 4096;
constexpr char kModule[] = "module";
constexpr char kOptimizer[] = "optimizer";

bool HasName(const Listing& listing, std::string_view name) {
  return std::binary_search(listing.names.begin(), listing.names.end(), name);
}

// The folder of the tag that counts.
struct Located {
  std::string folder;
  StateFiles files;
  std::string tag;  // empty: the source is the folder
  std::optional<SourceFile> latest;
};

absl::Status Refused(const std::string& folder, std::string_view why, std::string_view advice) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("opening {}: {}; {}", folder, why, advice), {{"file", folder}});
}

absl::Status NoSuchTag(const std::string& latest, const std::string& tag, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("reading {}: it names the tag {}, {}; copy that folder there, or "
                               "name the folder of another tag",
                               latest, Quoted(Escape(tag)), why),
                   {{"file", latest}});
}

// The folder beside `latest` that it names.
absl::StatusOr<Located> LocateLatest(const Storage& storage, const std::string& source) {
  const std::string path = source + "/" + kLatest;
  absl::StatusOr<TextObject> text = ReadText(storage, path, kMaxTagBytes);
  if (!text.ok()) return WithFact(text.status(), "file", path);
  Located out;
  out.latest = std::move(text->identity);
  out.tag = text->text.substr(0, text->text.find_last_not_of(" \t\r\n") + 1);
  const bool is_path = out.tag.find_first_of(std::string_view("/\0", 2)) != std::string::npos;
  if (out.tag.empty() || out.tag == "." || out.tag == ".." || is_path) {
    return NoSuchTag(path, out.tag, "which is no name of a folder");
  }
  out.folder = source + "/" + out.tag;
  const absl::StatusOr<Listing> tag = ListSource(storage, out.folder);
  if (tag.status().code() == absl::StatusCode::kNotFound) {
    return NoSuchTag(path, out.tag, "which is not there");
  }
  CKPTD_RETURN_IF_ERROR(tag.status());
  out.files = deepspeed::StateFilesOf(tag->names);
  if (out.files.empty()) return NoSuchTag(path, out.tag, "which holds no states of a model");
  return out;
}

absl::StatusOr<Located> Locate(const Storage& storage, const Listing& listing) {
  Located out;
  out.folder = listing.source;
  out.files = deepspeed::StateFilesOf(listing.names);
  if (out.files.empty() && HasName(listing, kLatest)) {
    CKPTD_ASSIGN_OR_RETURN(out, LocateLatest(storage, listing.source));
  } else if (out.files.empty() && HasName(listing, kLatestUniversal)) {
    out.files.is_universal = true;
  }
  if (out.files.is_universal) {
    return Refused(out.folder, "it is a universal checkpoint of DeepSpeed",
                   "load the one that ds_to_universal made it of");
  }
  if (!out.files.unsupported.empty()) {
    return Refused(out.folder, out.files.unsupported,
                   "save the whole model from DeepSpeed (save_16bit_model)");
  }
  if (!out.files.models.empty()) return out;
  return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                   fmt::format("opening {}: it holds no states of a model; name the folder of "
                               "a tag, or the one with `latest`",
                               listing.source),
                   {{"file", listing.source}});
}

// The error that names the files that ranks below `ranks` lack, or says that there are too many
// ranks; OK where neither is so.
absl::Status CheckComplete(const Located& located, uint64_t ranks) {
  if (ranks > kMaxSourceFiles) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: it is of {} ranks, at most {} are read",
                                 located.folder, ranks, kMaxSourceFiles),
                     {{"file", located.folder}});
  }
  const auto count = static_cast<uint32_t>(ranks);
  std::vector<std::string> missing = deepspeed::MissingOptimizers(located.files, count);
  if (located.files.models_by_rank) {
    const std::vector<std::string> models = deepspeed::MissingModels(located.files, count);
    missing.insert(missing.end(), models.begin(), models.end());
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(located.folder, missing,
                      located.files.models_by_rank
                          ? "copy them there from the nodes that saved them"
                          : "copy them there from the nodes that saved them, or load the 16-bit "
                            "weights (#module)");
}

std::string PathOf(const Located& located, const std::string& name) {
  return located.folder + "/" + name;
}

// Leaves what is read of the files of other ranks than 0.
void KeepParts(deepspeed::ModelStates& model) {
  model.module = {};
  model.others = {};
  model.optimizer = {};
  model.groups.clear();
  model.file.document = {};
  model.file.storages.clear();
}

// The states of the optimizers of all ranks.
absl::Status ReadOptimizers(const Storage& storage, const Located& located, bool with_state,
                            States& out) {
  using deepspeed::Wanted;
  const deepspeed::RankFiles& files = located.files.optimizers;
  if (files.empty()) return CheckComplete(located, std::max<uint64_t>(out.models[0].ranks, 1));
  CKPTD_ASSIGN_OR_RETURN(auto first,
                         deepspeed::ReadOptimizerStates(
                             storage, PathOf(located, files.begin()->second),
                             with_state ? Wanted::kStateAndValues : Wanted::kWeights));
  if (first.has_experts) {
    return Refused(located.folder, "its experts are partitioned among fewer ranks than the rest",
                   "save the whole model from DeepSpeed (save_16bit_model)");
  }
  const uint64_t ranks = first.ranks > 0 ? first.ranks : files.size();
  CKPTD_RETURN_IF_ERROR(CheckComplete(located, ranks));
  out.stage = first.stage;
  out.optimizers.push_back(std::move(first));
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const std::string path = PathOf(located, files.at(rank));
    CKPTD_ASSIGN_OR_RETURN(auto next, deepspeed::ReadOptimizerStates(
                                          storage, path,
                                          with_state ? Wanted::kState : Wanted::kWeights));
    if (next.stage != out.stage || (next.ranks > 0 && next.ranks != ranks)) {
      return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                       fmt::format("reading {}: it is of stage {} with {} ranks, rank 0's file of "
                                   "stage {} with {}; they are of different saves: save again",
                                   path, next.stage, next.ranks, out.stage, ranks),
                       {{"file", path}});
    }
    out.optimizers.push_back(std::move(next));
  }
  return absl::OkStatus();
}

absl::StatusOr<States> ReadStates(const Storage& storage, const Listing& listing,
                                  const Located& located) {
  const StateFiles& files = located.files;
  States out;
  CKPTD_ASSIGN_OR_RETURN(out.models.emplace_back(),
                         deepspeed::ReadModelStates(storage,
                                                    PathOf(located, files.models.begin()->second)));
  out.stage = files.models_by_rank ? 3 : out.models[0].stage.value_or(0);
  if (listing.part == kModule && out.stage == 3) {
    return Refused(located.folder, "ZeRO-3 saves no parameters with the module",
                   "load the 32-bit ones (#model), and cast them");
  }
  const bool is_partitioned = out.stage > 0 || !files.optimizers.empty();
  if (listing.part == kModule || !is_partitioned) return out;
  CKPTD_RETURN_IF_ERROR(ReadOptimizers(storage, located, listing.part == kOptimizer, out));
  if (!files.models_by_rank) return out;
  for (uint32_t rank = 1; rank < out.optimizers.size(); ++rank) {
    CKPTD_ASSIGN_OR_RETURN(
        out.models.emplace_back(),
        deepspeed::ReadModelStates(storage, PathOf(located, files.models.at(rank))));
    KeepParts(out.models.back());
  }
  return out;
}

}  // namespace

bool DeepSpeedFormat::Recognise(const Storage& storage, const Listing& listing) const {
  if (!listing.is_folder || (listing.part.empty() && HasUsualWeights(listing))) return false;
  if (!deepspeed::StateFilesOf(listing.names).empty()) return true;
  if (HasName(listing, kLatestUniversal)) return true;
  // Others call files and folders so, too.
  if (!HasName(listing, kLatest)) return false;
  return HasName(listing, "zero_to_fp32.py") || LocateLatest(storage, listing.source).ok();
}

absl::Status DeepSpeedFormat::Check(const Storage& storage, const Listing& listing) const {
  CKPTD_RETURN_IF_ERROR(CheckPart(listing, {"model", kModule, kOptimizer}));
  return Locate(storage, listing).status();
}

absl::StatusOr<OpenedCheckpoint> DeepSpeedFormat::ReadIndex(const Storage& storage,
                                                            const Listing& listing) const {
  CKPTD_RETURN_IF_ERROR(CheckPart(listing, {"model", kModule, kOptimizer}));
  CKPTD_ASSIGN_OR_RETURN(const Located located, Locate(storage, listing));
  CKPTD_ASSIGN_OR_RETURN(const States states, ReadStates(storage, listing, located));
  const bool is_optimizer = listing.part == kOptimizer;
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint out, is_optimizer ? deepspeed::AssembleOptimizer(states)
                                                            : deepspeed::AssembleModel(states));
  const size_t optimizers = located.files.optimizers.size();
  if (!states.optimizers.empty() && optimizers > states.optimizers.size()) {
    out.remarks.push_back(fmt::format("{} files of ranks are left out: the save was of {} ranks",
                                      optimizers - states.optimizers.size(),
                                      states.optimizers.size()));
  }
  if (located.latest.has_value()) {
    out.index.files.push_back(*located.latest);
    out.remarks.push_back(fmt::format("the tag {} counts, which {} names", Quoted(Escape(located.tag)),
                                      located.latest->path));
  }
  return out;
}

absl::StatusOr<bool> DeepSpeedFormat::StillMeans(const Storage& storage, const Listing& listing,
                                                 const std::vector<SourceFile>& files) const {
  CKPTD_ASSIGN_OR_RETURN(const Located located, Locate(storage, listing));
  const std::string folder = located.folder + "/";
  return std::all_of(files.begin(), files.end(), [&](const SourceFile& file) {
    const bool is_latest = located.latest.has_value() && file.path == located.latest->path;
    return is_latest || file.path.starts_with(folder);
  });
}

}  // namespace ckptd

#include "common/source/formats/safetensors/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/weight_map/series.h"

namespace ckptd {
namespace {

using Names = std::vector<std::string>;

constexpr char kWhole[] = "model.safetensors";
constexpr char kUsualIndex[] = "model.safetensors.index.json";
// By this the parts of a model are called that transformers writes.
constexpr std::string_view kUsualStem = "model";
constexpr std::string_view kExtension = ".safetensors";

bool Has(const Names& names, std::string_view name) {
  return std::binary_search(names.begin(), names.end(), name);
}

Names Without(const Names& names, bool (*leave_out)(const std::string&)) {
  Names kept;
  std::remove_copy_if(names.begin(), names.end(), std::back_inserter(kept), leave_out);
  return kept;
}

absl::Status Ambiguous(const std::string& folder, std::string_view what, const Names& names) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it holds {} {} ({}, {} ...), each another checkpoint; "
                               "name the one to load",
                               folder, names.size(), what, names[0], names[1]),
                   {{"file", folder}});
}

absl::StatusOr<FolderChoice> ChooseAmongFiles(const std::string& folder, const Names& all) {
  const Names of_model = Without(all, IsNoPartOfTheModel);
  const Names& names = of_model.empty() ? all : of_model;
  Names chosen = ChooseSeries(names, kExtension, kUsualStem);
  if (chosen.empty()) {
    if (of_model.empty() && names.size() > 1) return Ambiguous(folder, "files", names);
    chosen = names;
  }
  CKPTD_RETURN_IF_ERROR(CheckSeriesComplete(folder, chosen, kExtension));
  CKPTD_RETURN_IF_ERROR(RankSeries(chosen, kExtension).CheckComplete(folder));
  return FolderChoice{"", std::move(chosen)};
}

}  // namespace

bool IsNoPartOfTheModel(const std::string& name) {
  constexpr std::string_view kOthers[] = {
      "adapter_model", "consolidated", "optimizer", "pytorch_lora_weights", "random_states",
      "rng_state",     "scaler",       "scheduler", "training_state"};
  return std::any_of(std::begin(kOthers), std::end(kOthers), [&name](std::string_view other) {
    if (!name.starts_with(other)) return false;
    const std::string_view rest = std::string_view(name).substr(other.size());
    const bool numbered = rest.size() > 1 && rest[0] == '_' && rest[1] >= '0' && rest[1] <= '9';
    return rest.starts_with('.') || rest.starts_with('-') || numbered;
  });
}

bool PicklesComeFirst(const FolderContents& contents) {
  return !Has(contents.safetensors, kWhole) && !Has(contents.indices, kUsualIndex) &&
         (Has(contents.torch, "pytorch_model.bin") ||
          Has(contents.torch, "pytorch_model.bin.index.json"));
}

absl::StatusOr<FolderChoice> ChooseFiles(const std::string& folder,
                                         const FolderContents& contents) {
  if (Has(contents.safetensors, kWhole)) return FolderChoice{"", {kWhole}};
  if (Has(contents.indices, kUsualIndex)) return FolderChoice{kUsualIndex, {}};
  if (contents.safetensors.empty() && contents.indices.empty()) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     fmt::format("opening {}: no .safetensors file in this folder", folder),
                     {{"file", folder}});
  }
  Names indices = Without(contents.indices, IsNoPartOfTheModel);
  if (indices.empty()) indices = contents.indices;
  if (indices.size() == 1) return FolderChoice{indices[0], {}};
  if (indices.size() > 1) return Ambiguous(folder, "indices", indices);
  return ChooseAmongFiles(folder, contents.safetensors);
}

}  // namespace ckptd

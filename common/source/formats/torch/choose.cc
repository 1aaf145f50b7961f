#include "common/source/formats/torch/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/weight_map/series.h"

namespace ckptd::torch {
namespace {

using Names = std::vector<std::string>;

constexpr std::string_view kWhole = "pytorch_model.bin";
constexpr std::string_view kIndexEnd = ".bin.index.json";
constexpr std::string_view kUsualIndex = "pytorch_model.bin.index.json";
constexpr auto kExtensions =
    std::to_array<std::string_view>({".bin", ".pt", ".pth", ".ckpt", ".pth.tar"});
constexpr std::string_view kPickle = ".pkl";  // of what accelerate keeps besides weights
constexpr auto kParts = std::to_array<std::string_view>({"model", "optimizer", "extra"});

// The role of a file, by its name.
enum class Role { kNone, kIndex, kModel, kOtherWeights, kOptimizer, kState };

std::string_view ExtensionOf(std::string_view name) {
  std::string_view longest;
  for (const std::string_view extension : kExtensions) {
    if (name.ends_with(extension) && extension.size() > longest.size()) longest = extension;
  }
  return longest.empty() && name.ends_with(kPickle) ? kPickle : longest;
}

// "optimizer" of "optimizer_1", "rng_state" of "rng_state_0".
std::string_view WithoutNumber(std::string_view stem) {
  const size_t end = stem.find_last_not_of("0123456789");
  const bool is_numbered = end != std::string_view::npos && end + 1 < stem.size() &&
                           end > 0 && stem[end] == '_';
  return is_numbered ? stem.substr(0, end) : stem;
}

bool IsOneOf(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Role RoleOf(std::string_view name) {
  // As transformers, accelerate and others name what lies beside the weights.
  constexpr auto kState = std::to_array<std::string_view>(
      {"scheduler", "rng_state", "random_states", "scaler", "sampler", "dl_state_dict",
       "custom_checkpoint", "training_args", "training_state", "trainer_state"});
  constexpr auto kOtherWeights =
      std::to_array<std::string_view>({"adapter_model", "consolidated", "pytorch_lora_weights"});
  if (name.starts_with('.')) return Role::kNone;
  if (name.ends_with(kIndexEnd)) return Role::kIndex;
  const std::string_view extension = ExtensionOf(name);
  if (extension.empty()) return Role::kNone;
  const std::string_view stem = WithoutNumber(StemOf(name));
  if (IsOneOf(stem, kState)) return Role::kState;
  if (extension == kPickle) return Role::kNone;
  if (stem == "optimizer") return Role::kOptimizer;
  const std::string_view first = stem.substr(0, stem.find_first_of(".-"));
  return IsOneOf(first, kOtherWeights) ? Role::kOtherWeights : Role::kModel;
}

Names NamesOf(const Listing& listing, Role role) {
  Names out;
  std::copy_if(listing.names.begin(), listing.names.end(), std::back_inserter(out),
               [role](const std::string& name) { return RoleOf(name) == role; });
  return out;
}

bool IsOfModel(const Listing& listing) { return listing.part.empty() || listing.part == "model"; }

bool Has(const Listing& listing, std::string_view name) {
  return std::binary_search(listing.names.begin(), listing.names.end(), name);
}

// As transformers has it: other names than these come behind pytorch_model.bin and its index.
bool SafetensorsComeFirst(const Listing& listing) {
  if (Has(listing, "model.safetensors") || Has(listing, "model.safetensors.index.json")) {
    return true;
  }
  if (Has(listing, kWhole) || Has(listing, kUsualIndex)) return false;
  return std::any_of(listing.names.begin(), listing.names.end(), [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
  });
}

Role RoleOfPart(const Listing& listing) {
  return listing.part == "optimizer" ? Role::kOptimizer : Role::kState;
}

absl::Status Ambiguous(const std::string& folder, std::string_view what, const Names& names) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it holds {} {} ({}, {} ...), each another checkpoint; "
                               "name the one to load",
                               folder, names.size(), what, names[0], names[1]),
                   {{"file", folder}});
}

absl::Status NothingThere(const Listing& listing) {
  return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                   fmt::format("opening {}: it holds no file of torch for {}; name the file itself",
                               listing.source,
                               listing.part.empty() ? "the model" : "#" + listing.part),
                   {{"file", listing.source}, {"part", listing.part}});
}

absl::StatusOr<Names> ChooseAmongFiles(const Listing& listing) {
  Names names = NamesOf(listing, Role::kModel);
  if (names.empty()) names = NamesOf(listing, Role::kOtherWeights);
  if (names.empty()) return NothingThere(listing);
  const Names series = ChooseSeries(names, ".bin", "pytorch_model");
  if (!series.empty()) {
    CKPTD_RETURN_IF_ERROR(CheckSeriesComplete(listing.source, series, ".bin"));
    return series;
  }
  if (names.size() > 1) return Ambiguous(listing.source, "files of torch", names);
  return names;
}

absl::StatusOr<FilesChoice> ChooseModel(const Listing& listing) {
  FilesChoice out;
  const Names indices = NamesOf(listing, Role::kIndex);
  if (Has(listing, kWhole)) {
    out.names = {std::string(kWhole)};
  } else if (Has(listing, kUsualIndex)) {
    out.index = kUsualIndex;
  } else if (indices.size() > 1) {
    return Ambiguous(listing.source, "indices", indices);
  } else if (!indices.empty()) {
    out.index = indices.front();
  } else {
    CKPTD_ASSIGN_OR_RETURN(out.names, ChooseAmongFiles(listing));
  }
  for (const Role role : {Role::kIndex, Role::kModel, Role::kOtherWeights}) {
    for (std::string& name : NamesOf(listing, role)) {
      const bool counts = name == out.index ||
                          std::binary_search(out.names.begin(), out.names.end(), name);
      if (!counts) out.left_out.push_back(std::move(name));
    }
  }
  return out;
}

}  // namespace

std::string_view StemOf(std::string_view name) {
  return name.substr(0, name.size() - ExtensionOf(name).size());
}

bool HasTorchFiles(const Listing& listing) {
  if (IsOfModel(listing) && SafetensorsComeFirst(listing)) return false;
  if (!IsOfModel(listing) && !IsOneOf(listing.part, kParts)) return false;
  return std::any_of(listing.names.begin(), listing.names.end(), [&](const std::string& name) {
    const Role role = RoleOf(name);
    if (!IsOfModel(listing)) return role == RoleOfPart(listing);
    return role == Role::kIndex || role == Role::kModel || role == Role::kOtherWeights;
  });
}

absl::StatusOr<FilesChoice> ChooseFiles(const Listing& listing) {
  if (IsOfModel(listing)) return ChooseModel(listing);
  if (!IsOneOf(listing.part, kParts)) return NoSuchPart(listing, kParts);
  FilesChoice out;
  out.names = NamesOf(listing, RoleOfPart(listing));
  if (out.names.empty()) return NothingThere(listing);
  return out;
}

}  // namespace ckptd::torch

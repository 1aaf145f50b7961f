#include "common/source/formats/safetensors/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

using Names = std::vector<std::string>;

constexpr char kWhole[] = "model.safetensors";
constexpr char kUsualIndex[] = "model.safetensors.index.json";
// By this the parts of a model are called that transformers writes.
constexpr std::string_view kUsualStem = "model";

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

// What transformers and accelerate would read in place of the safetensors files.
absl::Status CheckNoPickles(const std::string& folder, const FolderContents& contents) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!Has(contents.torch, name)) continue;
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                     fmt::format("opening {}: it holds {} and no {}, so transformers reads the "
                                 "former, and PyTorch files (pickles) are not read here; convert it "
                                 "by save_pretrained, or name the safetensors file or index to load",
                                 folder, name, kWhole),
                     {{"file", folder + "/" + name}});
  }
  return absl::OkStatus();
}

// <stem>-<number>-of-<count>.safetensors
struct SeriesPart {
  std::string stem;
  uint32_t number = 0;
  uint32_t count = 0;
};

std::optional<uint32_t> Digits(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.size() != 5 || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<SeriesPart> ParseSeriesPart(std::string_view name) {
  constexpr std::string_view kPattern = "-00000-of-00000.safetensors";
  if (name.size() < kPattern.size()) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  const std::optional<uint32_t> number = Digits(tail.substr(1, 5));
  const std::optional<uint32_t> count = Digits(tail.substr(10, 5));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number || !count) return std::nullopt;
  // Torch numbers ranks, too, and a rank writes only those files that it has something for.
  if (name.starts_with("shard-") && Digits(name.substr(6, 5)).has_value()) return std::nullopt;
  return SeriesPart{std::string(name.substr(0, name.size() - kPattern.size())), *number, *count};
}

// The files of each series, by its stem and how many files it should have.
std::map<std::pair<std::string, uint32_t>, Names> SeriesOf(const Names& names) {
  std::map<std::pair<std::string, uint32_t>, Names> series;
  for (const std::string& name : names) {
    const std::optional<SeriesPart> part = ParseSeriesPart(name);
    if (part.has_value()) series[{part->stem, part->count}].push_back(name);
  }
  return series;
}

// Every number of a series must be there. Errors: NotFound SOURCE_NOT_FOUND naming the first
// that is not.
absl::Status CheckSeriesComplete(const std::string& folder, const Names& names) {
  for (const auto& [series, files] : SeriesOf(names)) {
    const auto& [stem, count] = series;
    const auto name_of = [&stem = stem, count = count](uint32_t number) {
      return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number, count);
    };
    const uint32_t first = Has(files, name_of(0)) ? 0 : 1;  // some writers count from 0
    for (uint32_t number = first; number < first + count; ++number) {
      const std::string name = name_of(number);
      if (Has(files, name)) continue;
      return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                       fmt::format("opening {}: {} is missing, the other files of its series are "
                                   "there; finish the download, or name the files by an index",
                                   folder, name),
                       {{"file", folder + "/" + name}});
    }
  }
  return absl::OkStatus();
}

// The series that counts; empty where none does.
Names ChooseSeries(const Names& names) {
  const auto series = SeriesOf(names);
  if (series.size() == 1) return series.begin()->second;
  const auto usual = [](const auto& one) { return one.first.first == kUsualStem; };
  if (std::count_if(series.begin(), series.end(), usual) != 1) return {};
  return std::find_if(series.begin(), series.end(), usual)->second;
}

absl::StatusOr<FolderChoice> ChooseAmongFiles(const std::string& folder, const Names& all) {
  const Names of_model = Without(all, IsNoPartOfTheModel);
  const Names& names = of_model.empty() ? all : of_model;
  Names chosen = ChooseSeries(names);
  if (chosen.empty()) {
    if (of_model.empty() && names.size() > 1) return Ambiguous(folder, "files", names);
    chosen = names;
  }
  CKPTD_RETURN_IF_ERROR(CheckSeriesComplete(folder, chosen));
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

absl::StatusOr<FolderChoice> ChooseFiles(const Storage& storage, const std::string& folder,
                                         const FolderContents& contents) {
  if (Has(contents.safetensors, kWhole)) return FolderChoice{"", {kWhole}};
  if (Has(contents.indices, kUsualIndex)) return FolderChoice{kUsualIndex, {}};
  if (contents.safetensors.empty() && contents.indices.empty()) {
    return NothingToLoad(storage, folder, contents);
  }
  CKPTD_RETURN_IF_ERROR(CheckNoPickles(folder, contents));
  Names indices = Without(contents.indices, IsNoPartOfTheModel);
  if (indices.empty()) indices = contents.indices;
  if (indices.size() == 1) return FolderChoice{indices[0], {}};
  if (indices.size() > 1) return Ambiguous(folder, "indices", indices);
  return ChooseAmongFiles(folder, contents.safetensors);
}

}  // namespace ckptd

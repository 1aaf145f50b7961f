#include "common/source/weight_map/series.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "common/source/format.h"

namespace ckptd {
namespace {

using Names = std::vector<std::string>;

struct SeriesPart {
  std::string stem;
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

std::optional<SeriesPart> ParseSeriesPart(std::string_view name, std::string_view extension) {
  constexpr std::string_view kPattern = "-00000-of-00000";
  if (!name.ends_with(extension)) return std::nullopt;
  name.remove_suffix(extension.size());
  if (name.size() < kPattern.size()) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kPattern.size());
  const std::optional<uint32_t> count = Digits(tail.substr(10, 5));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !Digits(tail.substr(1, 5)) || !count) {
    return std::nullopt;
  }
  // Torch numbers ranks, too, and a rank writes only those files that it has something for.
  if (name.starts_with("shard-") && Digits(name.substr(6, 5)).has_value()) return std::nullopt;
  return SeriesPart{std::string(name.substr(0, name.size() - kPattern.size())), *count};
}

// The files of each series, by its stem and how many files it should have.
std::map<std::pair<std::string, uint32_t>, Names> SeriesOf(const Names& names,
                                                           std::string_view extension) {
  std::map<std::pair<std::string, uint32_t>, Names> series;
  for (const std::string& name : names) {
    const std::optional<SeriesPart> part = ParseSeriesPart(name, extension);
    if (part.has_value()) series[{part->stem, part->count}].push_back(name);
  }
  return series;
}

}  // namespace

Names ChooseSeries(const Names& names, std::string_view extension, std::string_view usual_stem) {
  const auto series = SeriesOf(names, extension);
  if (series.size() == 1) return series.begin()->second;
  const auto usual = [usual_stem](const auto& one) { return one.first.first == usual_stem; };
  if (std::count_if(series.begin(), series.end(), usual) != 1) return {};
  return std::find_if(series.begin(), series.end(), usual)->second;
}

absl::Status CheckSeriesComplete(const std::string& folder, const Names& names,
                                 std::string_view extension) {
  Names missing;
  for (const auto& [series, files] : SeriesOf(names, extension)) {
    const auto& [stem, count] = series;
    const auto name_of = [&, &stem = stem, count = count](uint32_t number) {
      return fmt::format("{}-{:05}-of-{:05}{}", stem, number, count, extension);
    };
    const auto has = [&files = files](const std::string& name) {
      return std::binary_search(files.begin(), files.end(), name);
    };
    const uint32_t first = has(name_of(0)) ? 0 : 1;
    for (uint32_t number = first; number < first + count; ++number) {
      std::string name = name_of(number);
      if (!has(name)) missing.push_back(std::move(name));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(folder, missing,
                      "the other files of its series are there: finish the download, or name the "
                      "files by an index");
}

}  // namespace ckptd

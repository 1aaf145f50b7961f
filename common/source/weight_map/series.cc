#include "common/source/weight_map/series.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

constexpr std::string_view kShard = "shard-";
constexpr size_t kDigits = 5;

struct SeriesPart {
  std::string stem;
  uint32_t number = 0;
  uint32_t count = 0;
};

std::optional<uint32_t> Digits(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.size() != kDigits || error != std::errc() || end != text.data() + text.size()) {
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
  const std::optional<uint32_t> number = Digits(tail.substr(1, kDigits));
  const std::optional<uint32_t> count = Digits(tail.substr(10, kDigits));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number || !count) return std::nullopt;
  return SeriesPart{std::string(name.substr(0, name.size() - kPattern.size())), *number, *count};
}

std::optional<uint32_t> RankOf(std::string_view name) {
  return name.starts_with(kShard) ? Digits(name.substr(kShard.size(), kDigits)) : std::nullopt;
}

// What stands behind the rank.
std::string_view BehindRank(std::string_view name) {
  return name.substr(std::min(name.size(), kShard.size() + kDigits + 1));
}

// The files of each series, by its stem and how many files it should have.
std::map<std::pair<std::string, uint32_t>, Names> SeriesOf(const Names& names,
                                                           std::string_view extension) {
  std::map<std::pair<std::string, uint32_t>, Names> series;
  for (const std::string& name : names) {
    const std::optional<SeriesPart> part = ParseSeriesPart(name, extension);
    if (part.has_value() && !RankOf(name).has_value()) series[{part->stem, part->count}].push_back(name);
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

RankSeries::RankSeries(const Names& names, std::string_view extension) : extension_(extension) {
  for (const std::string& name : names) {
    const std::optional<uint32_t> rank = RankOf(name);
    if (!rank.has_value() || !ParseSeriesPart(BehindRank(name), extension).has_value()) continue;
    ranks_.insert(*rank);
    ranks_of_[std::string(BehindRank(name))].insert(*rank);
  }
}

absl::Status RankSeries::CheckComplete(const std::string& folder) const {
  std::set<std::pair<std::string, uint32_t>> series;
  std::set<uint32_t> numbers;
  for (const auto& [name, ranks] : ranks_of_) {
    const std::optional<SeriesPart> part = ParseSeriesPart(name, extension_);
    series.emplace(part->stem, part->count);
    numbers.insert(part->number);
  }
  if (series.size() != 1) return absl::OkStatus();
  const auto& [stem, count] = *series.begin();
  Names missing;
  for (uint32_t number = 1; number <= count; ++number) {
    if (numbers.count(number) != 0) continue;
    missing.push_back(fmt::format("{}*-{}-{:05}-of-{:05}{}", kShard, stem, number, count, extension_));
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(folder, missing,
                      "no rank's file of that number is there: copy the files of all nodes that "
                      "saved into this folder, or finish the download");
}

Names RankSeries::LackedBeside(std::string_view name) const {
  Names lacked;
  const auto found = ranks_of_.find(std::string(BehindRank(name)));
  if (!RankOf(name).has_value() || found == ranks_of_.end()) return lacked;
  for (uint32_t rank = 1; rank < *ranks_.rbegin(); ++rank) {
    if (found->second.count(rank) != 0) continue;
    lacked.push_back(fmt::format("{}{:05}-{}", kShard, rank, found->first));
  }
  return lacked;
}

std::string RankSeries::Describe() const {
  constexpr size_t kMostNamed = 8;
  std::vector<uint32_t> without;
  for (uint32_t rank = 1; rank < *ranks_.rbegin() && without.size() <= kMostNamed; ++rank) {
    if (ranks_.count(rank) == 0) without.push_back(rank);
  }
  if (*ranks_.rbegin() <= 1) return "rank 1";
  std::string out = fmt::format("ranks 1 to {}", *ranks_.rbegin());
  if (without.empty()) return out;
  const bool more = without.size() > kMostNamed;
  if (more) without.pop_back();
  return fmt::format("{} without {}{}", out, fmt::join(without, ", "), more ? " and others" : "");
}

}  // namespace ckptd

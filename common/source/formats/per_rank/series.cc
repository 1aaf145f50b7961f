#include "common/source/formats/per_rank/series.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd::per_rank {
namespace {

constexpr std::string_view kParts[] = {"model", "optimizer", "extra"};

// Takes the digits that `text` ends with.
std::optional<uint32_t> TakeNumber(std::string_view& text) {
  constexpr size_t kMostDigits = 9;
  const size_t last = text.find_last_not_of("0123456789");
  const size_t begin = last == std::string_view::npos ? 0 : last + 1;
  const std::string_view digits = text.substr(begin);
  if (digits.empty() || digits.size() > kMostDigits) return std::nullopt;
  uint32_t number = 0;
  for (const char c : digits) number = number * 10 + static_cast<uint32_t>(c - '0');
  text.remove_suffix(digits.size());
  return number;
}

// Takes `end` from the end of `text`, if it is there.
bool TakeEnd(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

// "stem", and "-" or "_" behind it.
std::string_view WithoutSeparator(std::string_view text) {
  while (!text.empty() && (text.back() == '_' || text.back() == '-')) text.remove_suffix(1);
  return text;
}

std::string_view PartOfStem(std::string_view stem) {
  if (stem.starts_with("optim")) return kParts[1];
  constexpr std::string_view kExtras[] = {"extra", "rng", "random", "scheduler", "scaler"};
  const bool is_extra = std::any_of(std::begin(kExtras), std::end(kExtras),
                                    [stem](std::string_view one) { return stem.starts_with(one); });
  return is_extra ? kParts[2] : kParts[0];
}

struct Parsed {
  Series series;  // without files
  uint32_t rank = 0;
};

std::optional<Parsed> Parse(std::string_view name) {
  std::string_view text = name;
  Parsed out;
  for (const std::string_view extension : {".bin", ".pt", ".pth"}) {
    if (!text.ends_with(extension)) continue;
    out.series.extension = extension;
    text.remove_suffix(extension.size());
    break;
  }
  if (out.series.extension.empty() || text.starts_with('.')) return std::nullopt;
  const std::optional<uint32_t> rank = TakeNumber(text);
  if (!rank.has_value()) return std::nullopt;
  out.rank = *rank;
  out.series.before = text;
  if (!TakeEnd(text, "rank_") && !TakeEnd(text, "rank")) return std::nullopt;
  text = WithoutSeparator(text);
  std::string_view before = text;
  if (const auto ranks = TakeNumber(before);
      ranks.has_value() && (TakeEnd(before, "world_size_") || TakeEnd(before, "world_size"))) {
    out.series.ranks = *ranks;
    text = WithoutSeparator(before);
  }
  if (text.empty()) return std::nullopt;
  out.series.stem = text;
  out.series.part = PartOfStem(text);
  return out;
}

}  // namespace

std::vector<Series> SeriesOf(const std::vector<std::string>& names) {
  std::map<std::pair<std::string, std::string>, Series> found;
  for (const std::string& name : names) {
    std::optional<Parsed> parsed = Parse(name);
    if (!parsed.has_value()) continue;
    Series& series = found.try_emplace({parsed->series.before, parsed->series.extension},
                                       parsed->series).first->second;
    series.files.emplace(parsed->rank, name);
  }
  std::vector<Series> out;
  for (auto& [key, series] : found) out.push_back(std::move(series));
  return out;
}

absl::StatusOr<Series> ChooseSeries(const Listing& listing) {
  const std::string wanted = listing.part.empty() ? std::string(kParts[0]) : listing.part;
  const std::vector<Series> all = SeriesOf(listing.names);
  std::vector<Series> of_stem;
  std::vector<Series> of_part;
  std::set<std::string> parts;
  for (const Series& series : all) {
    if (series.stem == listing.part) of_stem.push_back(series);
    if (series.part == wanted) of_part.push_back(series);
    parts.insert(series.part);
    parts.insert(series.stem);
  }
  std::vector<Series>& chosen = of_stem.empty() ? of_part : of_stem;
  if (chosen.size() == 1) {
    Series& series = chosen.front();
    // Files of ranks that this save did not have do not count.
    if (series.ranks > 0) {
      series.files.erase(series.files.lower_bound(series.ranks), series.files.end());
    }
    return std::move(series);
  }
  if (chosen.empty()) {
    const std::vector<std::string_view> names(parts.begin(), parts.end());
    return NoSuchPart(listing, names);
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it holds files of ranks of {} saves, such as {} and {}; "
                               "name one by its part (#{}), or move the others away",
                               listing.source, chosen.size(),
                               Quoted(Escape(chosen[0].files.begin()->second)),
                               Quoted(Escape(chosen[1].files.begin()->second)),
                               Escape(chosen[0].stem)),
                   {{"file", listing.source}});
}

std::vector<std::string> MissingOf(const Series& series, const std::vector<uint32_t>& ranks) {
  std::vector<std::string> out;
  for (const uint32_t rank : ranks) {
    if (series.files.contains(rank)) continue;
    out.push_back(fmt::format("{}{}{}", series.before, rank, series.extension));
  }
  return out;
}

}  // namespace ckptd::per_rank

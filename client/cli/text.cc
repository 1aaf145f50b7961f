#include "client/cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace ckptd::cli {

size_t Columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string Shorten(std::string_view text, size_t columns) {
  if (Columns(text) <= columns) return std::string(text);
  const size_t kept = columns > 3 ? columns - 3 : 0;
  size_t at = 0;
  for (size_t points = 0; at < text.size(); ++at) {
    const bool starts = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (starts && points++ == kept) break;
  }
  return std::string(text.substr(0, at)) + std::string("...").substr(0, columns);
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 7> kUnits = {"B",  "kB", "MB", "GB",
                                                             "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // A value that would be printed as 1000 becomes 1.0 of the next unit.
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return value < 99.95 ? fmt::format("{:.1f} {}", value, kUnits[unit])
                       : fmt::format("{:.0f} {}", value, kUnits[unit]);
}

std::string HumanRate(double bytes_per_second) {
  if (!(bytes_per_second > 0) || bytes_per_second > 1e18) return "-";
  return HumanBytes(static_cast<uint64_t>(std::llround(bytes_per_second))) + "/s";
}

std::string HumanDuration(std::chrono::duration<double> duration) {
  const double seconds = std::max(0.0, duration.count());
  if (!(seconds < 1e12)) return "-";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

std::string Age(const google::protobuf::Timestamp& time, TimePoint now) {
  return time.seconds() == 0 ? "" : HumanDuration(now - TimeOf(time));
}

std::string Counted(uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string_view OtherRanks(int32_t world_size) {
  return world_size > 1 ? "; --rank chooses another" : "";
}

std::string JoinShape(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace ckptd::cli

#include "server/daemon/sizes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},          {"b", 1},          {"k", 1e3},        {"kb", 1e3},
                           {"m", 1e6},       {"mb", 1e6},       {"g", 1e9},        {"gb", 1e9},
                           {"t", 1e12},      {"tb", 1e12},      {"kib", 1024.0},   {"mib", 1048576.0},
                           {"gib", 1073741824.0}, {"tib", 1099511627776.0}};

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  double number = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  std::string unit;
  for (const char* c = stop; c != end; ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  const auto* const known = std::find_if(std::begin(kUnits), std::end(kUnits),
                                         [&](const Unit& one) { return unit == one.name; });
  const bool fits = error == std::errc() && std::isfinite(number) && number >= 0 &&
                    known != std::end(kUnits) && number * known->bytes < 9e18;
  if (!fits) {
    return Invalid(fmt::format("reading the size \"{}\": write a number with a unit, such as "
                               "16GiB, 2.5GB or 800M",
                               text));
  }
  return static_cast<uint64_t>(number * known->bytes);
}

absl::StatusOr<uint64_t> ParseShare(const std::string& text, uint64_t whole) {
  if (text.empty() || text.back() != '%') return ParseBytes(text);
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [stop, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || stop != end || !(percent > 0 && percent <= 100)) {
    return Invalid(fmt::format("reading the share \"{}\": write 1% to 100%, or a size such as "
                               "16GiB",
                               text));
  }
  return static_cast<uint64_t>(static_cast<double>(whole) * percent / 100.0);
}

absl::StatusOr<uint64_t> ParseBudget(const std::string& text, uint64_t free, uint64_t kept) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t budget, ParseShare(text, free + kept));
  return text.ends_with('%') ? std::max(budget, kept) : budget;
}

}  // namespace ckptd

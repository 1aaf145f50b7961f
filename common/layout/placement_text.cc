#include "common/layout/placement_text.h"

#include <fmt/format.h>

#include <charconv>

namespace ckptd {
namespace {

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

// The text between "name(" and ")". Nullopt if the text is not a call of `name`.
std::optional<std::string_view> ArgumentsOf(std::string_view text, std::string_view name) {
  if (text.size() < name.size() + 2 || text.substr(0, name.size()) != name ||
      text[name.size()] != '(' || text.back() != ')') {
    return std::nullopt;
  }
  return text.substr(name.size() + 1, text.size() - name.size() - 2);
}

}  // namespace

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::optional<uint32_t> ParseDecimal(std::string_view text) { return ParseWhole<uint32_t>(text); }

std::optional<Placement> ParsePlacement(std::string_view text) {
  text = Trimmed(text);
  Placement placement;
  if (text == "replicate") return placement;
  if (const auto argument = ArgumentsOf(text, "shard"); argument.has_value()) {
    const auto dim = ParseWhole<int32_t>(Trimmed(*argument));
    if (!dim.has_value()) return std::nullopt;
    placement.kind = Placement::Kind::kShard;
    placement.dim = *dim;
    return placement;
  }
  const auto arguments = ArgumentsOf(text, "strided_shard");
  if (!arguments.has_value()) return std::nullopt;
  const size_t comma = arguments->find(',');
  if (comma == std::string_view::npos) return std::nullopt;
  const auto dim = ParseWhole<int32_t>(Trimmed(arguments->substr(0, comma)));
  const auto split_factor = ParseDecimal(Trimmed(arguments->substr(comma + 1)));
  if (!dim.has_value() || !split_factor.has_value() || *split_factor == 0) return std::nullopt;
  placement.kind = Placement::Kind::kStridedShard;
  placement.dim = *dim;
  placement.split_factor = *split_factor;
  return placement;
}

std::string ToText(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kShard:
      return fmt::format("shard({})", placement.dim);
    case Placement::Kind::kStridedShard:
      return fmt::format("strided_shard({},{})", placement.dim, placement.split_factor);
    case Placement::Kind::kReplicate:
      break;
  }
  return "replicate";
}

}  // namespace ckptd

#include "common/layout/rules_parser.h"

#include <fmt/format.h>
#include <rapidjson/error/en.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "common/layout/placement_text.h"

namespace ckptd {
namespace {

// Numbers of a layout are small and whole. This is checked before parsing, because the packaged
// RapidJSON reads outside its tables on some extreme exponents.
absl::Status CheckNumbers(std::string_view text) {
  constexpr size_t kLongest = 10;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string) {
      if (text[i] == '\\') ++i;
      continue;
    }
    if (text[i] != '-' && (text[i] < '0' || text[i] > '9')) continue;
    const size_t end = std::min(text.find_first_not_of("0123456789+-.eE", i), text.size());
    const std::string_view number = text.substr(i, end - i);
    if (number.size() > kLongest ||
        number.find_first_not_of("0123456789") != std::string_view::npos) {
      return LayoutTextError(
          fmt::format("\"{}\" at byte {} is no whole number from 0 to 4294967295",
                      number.substr(0, 20), i));
    }
    i = end - 1;
  }
  return absl::OkStatus();
}

constexpr char kShortForms[] =
    "use fsdp:N, hsdp:RxS, replicate:N or a JSON object (see layout.example.json)";

}  // namespace

std::vector<uint32_t> RanksUpTo(uint64_t count) {
  std::vector<uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0u);
  return ranks;
}

uint64_t RanksIn(const std::vector<uint32_t>& shape) {
  uint64_t product = 1;
  for (const uint32_t size : shape) {
    product *= size;
    if (product > LayoutRules::kMaxWorldSize) return product;
  }
  return product;
}

absl::StatusOr<LayoutRules> LayoutRules::Parse(std::string_view text) {
  return LayoutRulesParser().Parse(text);
}

absl::StatusOr<LayoutRules> LayoutRulesParser::Parse(std::string_view text) {
  if (text.size() > kMaxLayoutTextBytes) {
    return LayoutTextError(fmt::format("it has {} bytes; at most {} are read", text.size(),
                                       kMaxLayoutTextBytes));
  }
  text = Trimmed(text);
  if (!text.empty() && text.front() == '{') {
    CKPTD_RETURN_IF_ERROR(ParseJson(text));
  } else {
    CKPTD_RETURN_IF_ERROR(ParseShort(text));
  }
  return std::move(rules_);
}

void LayoutRulesParser::UseOneRule(const std::vector<uint32_t>& shape, const Sharding& sharding) {
  LayoutRules::Rule rule;
  rule.patterns = {"*"};
  rule.sharding = sharding;
  rules_.world_size_ = static_cast<uint32_t>(RanksIn(shape));
  if (!sharding.placements.empty()) {
    rules_.meshes_ = {Mesh{shape, {}, RanksUpTo(rules_.world_size_)}};
    rule.sharding.mesh = 0;
  }
  rules_.rules_ = {std::move(rule)};
}

absl::Status LayoutRulesParser::ParseShort(std::string_view text) {
  const absl::Status unknown = LayoutTextError(
      fmt::format("\"{}\" is no layout; {}", text.substr(0, 80), kShortForms));
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return unknown;
  const std::string_view kind = text.substr(0, colon);
  const std::string_view numbers = text.substr(colon + 1);
  const size_t cross = kind == "hsdp" ? numbers.find('x') : std::string_view::npos;
  std::vector<uint32_t> shape;
  for (const std::string_view number :
       cross == std::string_view::npos
           ? std::vector<std::string_view>{numbers}
           : std::vector<std::string_view>{numbers.substr(0, cross), numbers.substr(cross + 1)}) {
    const auto value = ParseDecimal(number);
    if (!value.has_value()) return unknown;
    shape.push_back(*value);
  }
  const uint64_t ranks = RanksIn(shape);
  if (ranks == 0 || ranks > LayoutRules::kMaxWorldSize) {
    return LayoutTextError(fmt::format("\"{}\" has {} ranks; 1 to {} are allowed", text, ranks,
                                       LayoutRules::kMaxWorldSize));
  }
  const Placement replicate;
  const Placement shard{Placement::Kind::kShard, 0, 1};
  Sharding sharding;
  if (kind == "fsdp") {
    sharding.placements = {shard};
  } else if (kind == "hsdp" && shape.size() == 2) {
    sharding.placements = {replicate, shard};
  } else if (kind != "replicate") {
    return unknown;
  }
  if (kind != "replicate") sharding.padded_dim = 0;
  UseOneRule(shape, sharding);
  rules_.description_ = std::string(text);
  return absl::OkStatus();
}

absl::Status LayoutRulesParser::ParseJson(std::string_view text) {
  CKPTD_RETURN_IF_ERROR(CheckNumbers(text));
  rapidjson::Document document;
  // Iterative, so that a deeply nested text cannot exhaust the stack.
  document.Parse<rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag>(
      text.data(), text.size());
  if (document.HasParseError()) {
    return LayoutTextError(fmt::format("it is not valid JSON at byte {}: {}",
                                       document.GetErrorOffset(),
                                       rapidjson::GetParseError_En(document.GetParseError())));
  }
  CKPTD_ASSIGN_OR_RETURN(
      const JsonObject top,
      JsonObject::Open(document, "",
                       {"description", "world_size", "mesh", "meshes", "rules", "default"}));
  CKPTD_RETURN_IF_ERROR(top.GetString("description").status());
  CKPTD_RETURN_IF_ERROR(ReadMeshes(top));
  CKPTD_RETURN_IF_ERROR(ReadWorldSize(top));
  CKPTD_RETURN_IF_ERROR(ReadRules(top));
  Describe();
  return absl::OkStatus();
}

void LayoutRulesParser::Describe() {
  const std::vector<Mesh>& meshes = rules_.meshes_;
  if (meshes.empty()) {
    rules_.description_ = fmt::format("rules over {} rank{}", rules_.world_size_,
                                      rules_.world_size_ == 1 ? "" : "s");
    return;
  }
  std::string text;
  for (size_t i = 0; i < meshes.size(); ++i) {
    if (i != 0) text += ", ";
    if (!mesh_names_[i].empty()) text += mesh_names_[i] + " ";
    text += fmt::format("{}", fmt::join(meshes[i].shape, "x"));
  }
  rules_.description_ = fmt::format("rules over mesh{} {}", meshes.size() > 1 ? "es" : "", text);
}

}  // namespace ckptd

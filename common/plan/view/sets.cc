#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/plan/view/sets.h"
#include "common/plan/view/view.h"

namespace ckptd::view {
namespace {

constexpr std::string_view kHeads = "num_attention_heads";
constexpr std::string_view kKvHeads = "num_key_value_heads";
constexpr std::array kParameters = {kHeads, kKvHeads};
constexpr uint64_t kMostHeads = 1'000'000;

absl::Status Invalid(std::string_view name, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                   fmt::format("reading the view {}: {}", name, why), {});
}

// What is before and behind the first `c`; all and nothing where there is none.
std::pair<std::string_view, std::string_view> Cut(std::string_view text, char c) {
  const size_t at = text.find(c);
  if (at == std::string_view::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + 1)};
}

using Values = std::map<std::string, uint64_t, std::less<>>;

absl::StatusOr<Values> ReadValues(std::string_view name, std::string_view text) {
  Values values;
  while (!text.empty()) {
    const auto [one, rest] = Cut(text, ',');
    text = rest;
    const auto [key, number] = Cut(one, '=');
    uint64_t value = 0;
    if (std::find(kParameters.begin(), kParameters.end(), key) == kParameters.end() ||
        !absl::SimpleAtoi(std::string(number), &value) || value == 0 || value > kMostHeads) {
      return Invalid(name, fmt::format("\"{}\" is none of {} with a number behind \"=\"", one,
                                       fmt::join(kParameters, ", ")));
    }
    values[std::string(key)] = value;
  }
  // As transformers does where the config does not tell.
  if (values.contains(kHeads)) values.try_emplace(std::string(kKvHeads), values.at(std::string(kHeads)));
  return values;
}

}  // namespace

bool IsName(std::string_view text) {
  return !text.empty() && text.find_first_of("{/@\n") == std::string_view::npos &&
         !text.ends_with(".json");
}

absl::StatusOr<std::string> RulesOfSet(std::string_view text) {
  const auto parts = Cut(text, ':');
  const auto sets = Sets();
  const auto found = std::find_if(sets.begin(), sets.end(),
                                  [&](const NamedSet& set) { return set.name == parts.first; });
  if (found == sets.end()) {
    std::vector<std::string_view> names;
    for (const NamedSet& set : sets) names.push_back(set.name);
    return Invalid(parts.first, fmt::format("there is none of this name, only {}; a file of rules "
                                            "is named with .json or @",
                                            fmt::join(names, ", ")));
  }
  CKPTD_ASSIGN_OR_RETURN(const Values values, ReadValues(parts.first, parts.second));
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : values) texts[fmt::format("\"${}\"", key)] = fmt::format("{}", value);
  if (values.contains(kHeads)) {
    const uint64_t heads = values.at(std::string(kHeads)), groups = values.at(std::string(kKvHeads));
    if (heads % groups != 0) {
      return Invalid(parts.first, fmt::format("{} heads are not alike in {} groups", heads, groups));
    }
    texts["\"$queries\""] = fmt::format("{}", heads / groups);
  }
  std::string rules = absl::StrReplaceAll(std::string(found->rules), texts);
  if (rules.find('$') == std::string::npos) return rules;
  return Invalid(parts.first, fmt::format("it needs {}; say {}:{}=32,{}=8, or have a config.json beside the checkpoint",
                                          kHeads, parts.first, kHeads, kKvHeads));
}

std::string WithConfig(std::string_view name, std::string_view config) {
  std::string text(name);
  rapidjson::Document json;
  if (name.find(':') != std::string_view::npos || ParseJson(config, JsonNumbers::kExact, json) ||
      !json.IsObject()) {
    return text;
  }
  for (const std::string_view key : kParameters) {
    const auto member = json.FindMember(std::string(key).c_str());
    if (member == json.MemberEnd() || !member->value.IsUint64()) continue;
    text += fmt::format("{}{}={}", text.size() == name.size() ? ":" : ",", key, member->value.GetUint64());
  }
  return text;
}

}  // namespace ckptd::view

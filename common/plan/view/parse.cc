#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidjson/document.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/plan/view/sets.h"
#include "common/plan/view/view.h"

namespace ckptd::view {
namespace {

constexpr size_t kMaxAxis = 63;

struct Form {
  RuleKind kind;
  std::string_view key;
  std::set<std::string_view> needs;  // beside its own key
  std::set<std::string_view> takes;
};
const std::array<Form, 10>& Forms() {
  static const auto& forms = *new std::array<Form, 10>{{
      {RuleKind::kRename, "rename", {"to"}, {}},
      {RuleKind::kTranspose, "transpose", {}, {"axes"}},
      {RuleKind::kSplit, "split", {"to"}, {"axis", "sizes", "shares", "groups"}},
      {RuleKind::kFuse, "fuse", {"to"}, {"axis", "sizes", "shares", "groups"}},
      {RuleKind::kStack, "stack", {"to"}, {"axis"}},
      {RuleKind::kUnstack, "unstack", {"to"}, {"axis"}},
      {RuleKind::kSlice, "slice", {"begin", "end"}, {"axis"}},
      {RuleKind::kTie, "tie", {"to"}, {}},
      {RuleKind::kUntie, "untie", {}, {}},
      {RuleKind::kDrop, "drop", {}, {}},
  }};
  return forms;
}

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                   "reading a view: " + why, {});
}

std::string_view TextOf(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

// Reads one rule.
class RuleParser {
 public:
  RuleParser(const rapidjson::Value& object, size_t number) : object_(object), number_(number) {}

  absl::StatusOr<Rule> Parse() {
    if (!object_.IsObject()) return Wrong("it is no object");
    CKPTD_ASSIGN_OR_RETURN(const Form* form, FormOf());
    rule_.kind = form->kind;
    CKPTD_RETURN_IF_ERROR(CheckKeys(*form));
    CKPTD_ASSIGN_OR_RETURN(rule_.from, Texts(form->key, rule_.kind == RuleKind::kFuse));
    if (Has("to")) {
      CKPTD_ASSIGN_OR_RETURN(rule_.to, Texts("to", rule_.kind == RuleKind::kSplit));
    }
    CKPTD_RETURN_IF_ERROR(ReadNumbers());
    CKPTD_RETURN_IF_ERROR(rule_.kind == RuleKind::kTie ? absl::OkStatus() : CheckPatterns());
    return std::move(rule_);
  }

 private:
  absl::Status Wrong(const std::string& why) const {
    return Invalid(fmt::format("rule {}: {}", number_, why));
  }
  bool Has(std::string_view key) const { return object_.HasMember(std::string(key).c_str()); }
  const rapidjson::Value& At(std::string_view key) const {
    return object_[std::string(key).c_str()];
  }

  absl::StatusOr<const Form*> FormOf() const {
    const Form* found = nullptr;
    std::vector<std::string_view> keys;
    for (const Form& form : Forms()) {
      keys.push_back(form.key);
      if (!Has(form.key)) continue;
      if (found != nullptr) {
        return Wrong(fmt::format("it is both \"{}\" and \"{}\"; make two of it", found->key, form.key));
      }
      found = &form;
    }
    if (found == nullptr) return Wrong(fmt::format("it has none of the keys {}", fmt::join(keys, ", ")));
    return found;
  }

  absl::Status CheckKeys(const Form& form) const {
    for (const std::string_view key : form.needs) {
      if (!Has(key)) return Wrong(fmt::format("\"{}\" needs \"{}\"", form.key, key));
    }
    std::set<std::string_view> seen;
    for (const auto& member : object_.GetObject()) {
      const std::string_view key = TextOf(member.name);
      if (!seen.insert(key).second) return Wrong(fmt::format("it has \"{}\" twice", key));
      if (key == form.key || key == "optional" || form.needs.contains(key)) continue;
      if (!form.takes.contains(key)) {
        return Wrong(fmt::format("\"{}\" takes no \"{}\"", form.key, key));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Texts(std::string_view key, bool several) const {
    const rapidjson::Value& value = At(key);
    std::vector<std::string> texts;
    if (value.IsString() && !several) return std::vector<std::string>{std::string(TextOf(value))};
    if (several && value.IsArray() && value.Size() >= 2) {
      for (const auto& text : value.GetArray()) {
        if (text.IsString()) texts.emplace_back(TextOf(text));
      }
      if (texts.size() == value.Size()) return texts;
    }
    return Wrong(fmt::format("\"{}\" is no {}", key, several ? "list of two or more texts" : "text"));
  }

  absl::Status ReadNumber(std::string_view key, uint64_t least, uint64_t most, uint64_t& out) const {
    if (!Has(key)) return absl::OkStatus();
    const rapidjson::Value& value = At(key);
    if (!value.IsUint64() || value.GetUint64() < least || value.GetUint64() > most) {
      return Wrong(fmt::format("\"{}\" is no whole number from {} to {}", key, least, most));
    }
    out = value.GetUint64();
    return absl::OkStatus();
  }
  absl::Status ReadList(std::string_view key, std::vector<uint64_t>& out) const {
    if (!Has(key)) return absl::OkStatus();
    const rapidjson::Value& value = At(key);
    bool fine = value.IsArray();
    for (rapidjson::SizeType i = 0; fine && i < value.Size(); ++i) {
      fine = value[i].IsUint64() && value[i].GetUint64() < uint64_t{1} << 62;
      if (fine) out.push_back(value[i].GetUint64());
    }
    return fine ? absl::OkStatus() : Wrong(fmt::format("\"{}\" is no list of whole numbers", key));
  }

  absl::Status ReadNumbers() {
    constexpr uint64_t kMost = uint64_t{1} << 62;
    uint64_t axis = 0;
    CKPTD_RETURN_IF_ERROR(ReadNumber("axis", 0, kMaxAxis, axis));
    rule_.axis = axis;
    CKPTD_RETURN_IF_ERROR(ReadNumber("groups", 1, kMost, rule_.groups));
    CKPTD_RETURN_IF_ERROR(ReadNumber("begin", 0, kMost, rule_.begin));
    CKPTD_RETURN_IF_ERROR(ReadNumber("end", 0, kMost, rule_.end));
    CKPTD_RETURN_IF_ERROR(ReadSizes());
    std::vector<uint64_t> axes;
    CKPTD_RETURN_IF_ERROR(ReadList("axes", axes));
    rule_.axes.assign(axes.begin(), axes.end());
    std::sort(axes.begin(), axes.end());
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] != i) return Wrong("\"axes\" are not 0, 1 and so on in some order");
    }
    if (Has("optional")) {
      if (!At("optional").IsBool()) return Wrong("\"optional\" is neither true nor false");
      rule_.optional = At("optional").GetBool();
    }
    return absl::OkStatus();
  }

  absl::Status ReadSizes() {
    constexpr uint64_t kMostShare = uint64_t{1} << 32;
    CKPTD_RETURN_IF_ERROR(ReadList("sizes", rule_.sizes));
    CKPTD_RETURN_IF_ERROR(ReadList("shares", rule_.shares));
    const size_t parts = std::max(rule_.from.size(), rule_.to.size());
    for (const auto* list : {&rule_.sizes, &rule_.shares}) {
      if (list->empty() || list->size() == parts) continue;
      return Wrong(fmt::format("it has {} sizes for {} parts", list->size(), parts));
    }
    if (!rule_.sizes.empty() && !rule_.shares.empty()) return Wrong("it has sizes and shares");
    for (const uint64_t share : rule_.shares) {
      if (share == 0 || share > kMostShare) return Wrong("a share is 0, or more than 2^32");
    }
    return absl::OkStatus();
  }

  absl::Status CheckPatterns() const {
    int groups = -1;
    for (const std::string& from : rule_.from) {
      const re2::RE2 regex(from, re2::RE2::Quiet);
      if (!regex.ok()) return Wrong(fmt::format("{}: {}; patterns are those of RE2", from, regex.error()));
      if (groups >= 0 && groups != regex.NumberOfCapturingGroups()) {
        return Wrong("its patterns have different numbers of parentheses, which say what belongs together");
      }
      groups = regex.NumberOfCapturingGroups();
      for (const std::string& to : rule_.to) {
        std::string error;
        if (!regex.CheckRewriteString(to, &error)) return Wrong(fmt::format("{}: {}", to, error));
      }
      if (rule_.kind == RuleKind::kStack && !regex.NamedCapturingGroups().contains("index")) {
        return Wrong("its pattern has no (?P<index>\\d+), by which it is stacked");
      }
    }
    const bool is_numbered = rule_.kind != RuleKind::kUnstack ||
                             rule_.to.front().find("{}") != std::string::npos;
    return is_numbered ? absl::OkStatus() : Wrong("\"to\" has no {}, where the number goes");
  }

  const rapidjson::Value& object_;
  const size_t number_;
  Rule rule_;
};

}  // namespace

std::string_view NameOf(RuleKind kind) {
  for (const Form& form : Forms()) {
    if (form.kind == kind) return form.key;
  }
  return "";
}

absl::StatusOr<View> ReadView(std::string_view text) {
  if (text.empty()) return View();
  const bool inverse = text.starts_with(kInverse);
  if (inverse) text.remove_prefix(kInverse.size());
  std::string rules(text);
  if (IsName(text)) {
    CKPTD_ASSIGN_OR_RETURN(rules, RulesOfSet(text));
  }
  CKPTD_ASSIGN_OR_RETURN(View view, ParseView(rules));
  if (!inverse) return view;
  return Inverse(view);
}

absl::StatusOr<View> ParseView(std::string_view text) {
  if (text.size() > kMaxViewBytes) {
    return Invalid(fmt::format("it has {} bytes; at most {} are read", text.size(), kMaxViewBytes));
  }
  rapidjson::Document json;
  if (const auto at = ParseJson(text, JsonNumbers::kExact, json)) {
    return Invalid(fmt::format("it is no JSON at byte {}", *at));
  }
  if (!json.IsObject() || json.MemberCount() != 1 || !json.HasMember("rules") ||
      !json["rules"].IsArray()) {
    return Invalid("it is no object with one list, \"rules\"");
  }
  const auto& rules = json["rules"];
  if (rules.Size() > kMaxViewRules) {
    return Invalid(fmt::format("it has {} rules; at most {} are read", rules.Size(), kMaxViewRules));
  }
  View view;
  for (rapidjson::SizeType i = 0; i < rules.Size(); ++i) {
    CKPTD_ASSIGN_OR_RETURN(Rule rule, RuleParser(rules[i], i + 1).Parse());
    view.rules.push_back(std::move(rule));
  }
  return view;
}

}  // namespace ckptd::view

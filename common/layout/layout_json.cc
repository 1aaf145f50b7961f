#include "common/layout/layout_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Foreign text for a message: short and printable.
std::string Shown(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  std::string out(text.substr(0, kMaxShown));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return text.size() > kMaxShown ? out + "..." : out;
}

std::string_view TextOf(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

absl::Status WrongType(const std::string& path, std::string_view wanted) {
  return LayoutTextError(fmt::format("\"{}\" must be {}", path, wanted));
}

}  // namespace

absl::Status LayoutTextError(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                   "reading the layout: " + sentence);
}

absl::StatusOr<JsonObject> JsonObject::Open(const rapidjson::Value& value, std::string where,
                                            const std::vector<std::string_view>& allowed) {
  const std::string shown = where.empty() ? "the layout" : fmt::format("\"{}\"", where);
  if (!value.IsObject()) {
    return LayoutTextError(fmt::format("{} must be an object with the keys {}", shown,
                                       fmt::join(allowed, ", ")));
  }
  std::vector<std::string_view> seen;
  for (const auto& member : value.GetObject()) {
    const std::string_view key = TextOf(member.name);
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
      return LayoutTextError(fmt::format("{} has the unknown key \"{}\"; allowed are {}", shown,
                                         Shown(key), fmt::join(allowed, ", ")));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return LayoutTextError(fmt::format("{} has the key \"{}\" twice", shown, key));
    }
    seen.push_back(key);
  }
  return JsonObject(value, std::move(where));
}

std::string JsonObject::Path(std::string_view key) const {
  return where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key);
}

const rapidjson::Value* JsonObject::Get(std::string_view key) const {
  const rapidjson::Value name(rapidjson::StringRef(key.data(), key.size()));
  const auto found = value_->FindMember(name);
  return found == value_->MemberEnd() ? nullptr : &found->value;
}

absl::StatusOr<std::optional<bool>> JsonObject::GetBool(std::string_view key) const {
  const rapidjson::Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->IsBool()) return WrongType(Path(key), "true or false");
  return value->GetBool();
}

absl::StatusOr<std::optional<std::string>> JsonObject::GetString(std::string_view key) const {
  const rapidjson::Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->IsString()) return WrongType(Path(key), "a string");
  return std::string(TextOf(*value));
}

absl::StatusOr<std::optional<uint32_t>> JsonObject::GetNumber(std::string_view key) const {
  const rapidjson::Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->IsUint()) return WrongType(Path(key), "a whole number from 0 to 4294967295");
  return value->GetUint();
}

absl::StatusOr<std::optional<std::vector<uint32_t>>> JsonObject::GetNumbers(
    std::string_view key) const {
  const rapidjson::Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  std::vector<uint32_t> numbers;
  if (!value->IsArray()) return WrongType(Path(key), "a list of whole numbers");
  for (const auto& item : value->GetArray()) {
    if (!item.IsUint()) return WrongType(Path(key), "a list of whole numbers");
    numbers.push_back(item.GetUint());
  }
  return numbers;
}

absl::StatusOr<std::optional<std::vector<std::string>>> JsonObject::GetStrings(
    std::string_view key) const {
  const rapidjson::Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> strings;
  if (!value->IsArray()) return WrongType(Path(key), "a list of strings");
  for (const auto& item : value->GetArray()) {
    if (!item.IsString()) return WrongType(Path(key), "a list of strings");
    strings.emplace_back(TextOf(item));
  }
  return strings;
}

}  // namespace ckptd

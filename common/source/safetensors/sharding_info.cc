#include "common/source/safetensors/sharding_info.h"

#include <fmt/format.h>
#include <rapidjson/document.h>

#include <optional>
#include <string_view>
#include <utility>

#include "common/base/json.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

absl::Status Invalid(std::string_view why, std::string_view tensor = {}) {
  return HeaderError("InvalidShardingInfo", fmt::format("its {} {}", kShardingInfoKey, why), tensor);
}

std::optional<Shape> OffsetsOf(const rapidjson::Value& entry) {
  if (!entry.IsObject()) return std::nullopt;
  const auto list = entry.FindMember("saved_offsets");
  if (list == entry.MemberEnd() || !list->value.IsArray()) return std::nullopt;
  Shape offsets;
  for (const rapidjson::Value& one : list->value.GetArray()) {
    if (!one.IsUint64()) return std::nullopt;
    offsets.push_back(one.GetUint64());
  }
  return offsets;
}

}  // namespace

absl::StatusOr<std::map<std::string, Shape>> ReadShardingInfo(const SafetensorsHeader& header) {
  std::map<std::string, Shape> out;
  const auto text = header.metadata.find(kShardingInfoKey);
  if (text == header.metadata.end()) return out;
  rapidjson::Document info;
  if (const auto fault = ParseJson(text->second, JsonNumbers::kExact, info); fault.has_value()) {
    return Invalid(fmt::format("is not JSON from byte {} on", *fault));
  }
  if (!info.IsObject()) return Invalid("is no object");
  for (const auto& [name, entry] : info.GetObject()) {
    std::optional<Shape> offsets = OffsetsOf(entry);
    if (offsets.has_value()) out.insert_or_assign({name.GetString(), name.GetStringLength()},
                                                  *std::move(offsets));
  }
  for (const HeaderTensor& tensor : header.tensors) {
    const auto offsets = out.find(tensor.name);
    if (offsets == out.end() || offsets->second.size() != tensor.shape.size()) {
      return Invalid(fmt::format("does not say where tensor {} begins", Quoted(tensor.name)),
                     tensor.name);
    }
  }
  return out;
}

}  // namespace ckptd

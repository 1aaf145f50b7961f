#include "common/source/formats/safetensors/config_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/safetensors/index_json.h"
#include "common/source/formats/safetensors/python_json.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr char kKey[] = "transformers_weights";

absl::Status Refuse(const std::string& name, std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("its {} is {}, {}; name the file to load by its own path, or correct "
                               "the config",
                               kKey, Quoted(name), why));
}

}  // namespace

absl::StatusOr<std::string> WeightsNamedBy(const std::string& json) {
  using Json = nlohmann::json;
  const auto keep_top = [](int depth, Json::parse_event_t, Json&) { return depth <= 1; };
  const Json config = Json::parse(StrictJson(json), keep_top, /*allow_exceptions=*/false);
  if (!config.is_object()) return std::string();
  const auto at = config.find(kKey);
  if (at == config.end() || !at->is_string()) return std::string();
  const auto name = at->get<std::string>();
  if (const std::string_view why = WhyUnsafe(name); !why.empty()) return Refuse(name, why);
  if (!name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json")) {
    return Refuse(name, "neither a .safetensors file nor an index of such files");
  }
  return name;
}

}  // namespace ckptd

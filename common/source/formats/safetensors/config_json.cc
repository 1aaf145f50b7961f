#include "common/source/formats/safetensors/config_json.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr std::string_view kKey = "transformers_weights";

// Keeps the text that the root has under kKey, and skips all else.
class ConfigSax : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, ConfigSax> {
 public:
  using Size = rapidjson::SizeType;
  bool Default() {
    wanted_ = false;
    return true;
  }
  bool String(const char* text, Size size, bool /*copy*/) {
    if (wanted_) name.emplace(text, size);
    return Default();
  }
  bool Key(const char* text, Size size, bool /*copy*/) {
    wanted_ = depth_ == 1 && std::string_view(text, size) == kKey;
    if (wanted_) name.reset();
    return true;
  }
  bool StartObject() { return Enter(); }
  bool StartArray() { return Enter(); }
  bool EndObject(Size /*members*/) { return Leave(); }
  bool EndArray(Size /*elements*/) { return Leave(); }

  std::optional<std::string> name;

 private:
  bool Enter() {
    ++depth_;
    return Default();
  }
  bool Leave() {
    --depth_;
    return true;
  }
  uint32_t depth_ = 0;
  bool wanted_ = false;  // the next value
};

absl::Status Refuse(const std::string& name, std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("its {} is {}, {}; name the file to load by its own path, or correct "
                               "the config",
                               kKey, Quoted(name), why));
}

}  // namespace

absl::StatusOr<std::string> WeightsNamedBy(const std::string& json) {
  ConfigSax sax;
  const auto fault = ReadJson<rapidjson::kParseNanAndInfFlag>(json, JsonNumbers::kOfKind, sax);
  if (fault.has_value() || !sax.name.has_value()) return std::string();
  const std::string& name = *sax.name;
  if (const std::string_view why = WhyUnsafe(name); !why.empty()) return Refuse(name, why);
  if (!name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json")) {
    return Refuse(name, "neither a .safetensors file nor an index of such files");
  }
  return name;
}

}  // namespace ckptd

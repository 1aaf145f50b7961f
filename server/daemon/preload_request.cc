// The request that the settings mean. Pure, so that it can be fuzzed.
#include "server/daemon/preload.h"

#include <chrono>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/path_text.h"
#include "common/layout/request_text.h"

namespace ckptd {
namespace {

// Long enough for any load. Clients that request the same have deadlines of their own.
constexpr std::chrono::hours kTimeout{1};

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid, why);
}

}  // namespace

absl::StatusOr<LoadRequest> PreloadRequest(const Config& config, bool on_gpu) {
  LoadRequest request;
  request.source = SourceOfText(config.load);
  request.timeout = kTimeout;
  const auto text = config.layout.empty()
                        ? absl::StatusOr<std::string>(fmt::format("fsdp:{}", config.world_size))
                        : ReadLayout(config.layout);
  if (!text.ok()) return Invalid("checking --layout: " + MessageOf(text.status()));
  const auto rules = LayoutRules::Parse(*text);
  if (!rules.ok()) return Invalid("checking --layout: " + MessageOf(rules.status()));
  if (rules->world_size() != config.world_size) {
    return Invalid(fmt::format("checking --layout {}: it is for {} ranks, and the group has {}",
                               rules->description(), rules->world_size(), config.world_size));
  }
  request.layout = *text;
  if (!config.dtype.empty()) {
    const std::optional<Dtype> dtype = ParseCastDtype(config.dtype);
    if (!dtype.has_value()) {
      return Invalid(fmt::format("checking --dtype {}: a load can cast to F16, BF16, F32 and F64",
                                 config.dtype));
    }
    request.policy.cast_to = *dtype;
  }
  const bool exclusive =
      config.load_mode == "exclusive" || (config.load_mode == "auto" && on_gpu);
  request.intended = exclusive ? AttachMode::kExclusive : AttachMode::kShared;
  return request;
}

}  // namespace ckptd

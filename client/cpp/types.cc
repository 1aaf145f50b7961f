#include "client/cpp/types.h"

#include <fmt/format.h>

#include <array>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

template <size_t N>
std::string_view Pick(const std::array<std::string_view, N>& names, size_t at) {
  return at < N ? names[at] : names[0];
}

}  // namespace

std::string_view NameOf(CheckpointState state) {
  static constexpr std::array<std::string_view, 6> kNames = {
      "UNSPECIFIED", "LOADING", "ACTIVE", "UNLOADING", "FAILED", "TAKEN"};
  return Pick(kNames, static_cast<size_t>(state));
}

std::string_view NameOf(LoadStage stage) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "UNSPECIFIED", "GATHERING",    "QUEUED",     "OPENING",           "PLANNING",
      "ALLOCATING",  "TRANSFERRING", "PUBLISHING", "WAITING_FOR_MEMORY"};
  return Pick(kNames, static_cast<size_t>(stage));
}

std::string_view NameOf(AttachMode mode) {
  static constexpr std::array<std::string_view, 4> kNames = {"UNSPECIFIED", "SHARED", "PRIVATE",
                                                             "EXCLUSIVE"};
  return Pick(kNames, static_cast<size_t>(mode));
}

absl::Status CheckActive(const CheckpointInfo& checkpoint) {
  const bool failed = checkpoint.failure.has_value();
  if (checkpoint.state == CheckpointState::kActive && !failed) return absl::OkStatus();
  const Facts facts = {{"checkpoint", checkpoint.name},
                       {"state", std::string(NameOf(checkpoint.state))}};
  if (failed) {
    const LoadFailure& failure = *checkpoint.failure;
    absl::Status status =
        MakeError(failure.code, failure.reason.empty() ? reason::kLoadFailed : failure.reason,
                  fmt::format("loading {} as {}: {}", checkpoint.source, checkpoint.name,
                              failure.message),
                  facts);
    return failure.rank < 0 ? status : WithFact(status, "rank", std::to_string(failure.rank));
  }
  if (checkpoint.state == CheckpointState::kTaken) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                     fmt::format("{} was taken by an EXCLUSIVE client, so the daemon no longer "
                                 "holds its memory; load {} again",
                                 checkpoint.name, checkpoint.source),
                     facts);
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotActive,
                   fmt::format("{} is {}, not ACTIVE, so its shard cannot be used; wait for it "
                               "with `ckptctl watch {}`",
                               checkpoint.name, NameOf(checkpoint.state), checkpoint.name),
                   facts);
}

}  // namespace client
}  // namespace ckptd

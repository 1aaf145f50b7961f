#include "client/cpp/types.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/wire/layout.h"

namespace ckptd {
inline namespace client {
namespace {

// Protobuf has no name for a value that it does not know.
std::string WithoutPrefix(const std::string& name, size_t prefix) {
  return name.empty() ? "UNSPECIFIED" : name.substr(prefix);
}

absl::StatusCode CodeOf(const v1::Failure& failure) {
  // 0 would be "OK", which is no failure.
  const bool known = failure.code() > 0 && failure.code() <= 16;
  return known ? static_cast<absl::StatusCode>(failure.code()) : absl::StatusCode::kUnknown;
}

}  // namespace

std::string NameOf(v1::Checkpoint::State state) {
  return WithoutPrefix(v1::Checkpoint::State_Name(state), sizeof("STATE"));
}
std::string NameOf(v1::Stage stage) { return WithoutPrefix(v1::Stage_Name(stage), sizeof("STAGE")); }
std::string NameOf(v1::AttachMode mode) {
  return WithoutPrefix(v1::AttachMode_Name(mode), sizeof("ATTACH_MODE"));
}
std::string NameOf(v1::HandleKind kind) {
  return WithoutPrefix(v1::HandleKind_Name(kind), sizeof("HANDLE_KIND"));
}
std::string NameOf(AttachMode mode) { return NameOf(static_cast<v1::AttachMode>(mode)); }

TimePoint TimeOf(const google::protobuf::Timestamp& time) {
  // Nanoseconds since 1970 overflow in 2262.
  constexpr int64_t kMost = 9'000'000'000;
  const auto since = std::chrono::seconds(std::clamp(time.seconds(), -kMost, kMost)) +
                     std::chrono::nanoseconds(time.nanos());
  return TimePoint(std::chrono::duration_cast<TimePoint::duration>(since));
}

Seconds SecondsOf(const google::protobuf::Duration& duration) {
  return Seconds(static_cast<double>(duration.seconds()) +
                 static_cast<double>(duration.nanos()) * 1e-9);
}

absl::Status CheckActive(const v1::Checkpoint& checkpoint) {
  const bool failed = checkpoint.has_failure();
  if (checkpoint.state() == v1::Checkpoint::STATE_ACTIVE && !failed) return absl::OkStatus();
  const Facts facts = {{"checkpoint", checkpoint.name()}, {"state", NameOf(checkpoint.state())}};
  if (failed) {
    const v1::Failure& failure = checkpoint.failure();
    absl::Status status =
        MakeError(CodeOf(failure),
                  failure.reason().empty() ? reason::kLoadFailed : failure.reason(),
                  fmt::format("loading {} as {}: {}", checkpoint.source(), checkpoint.name(),
                              failure.message()),
                  facts);
    return failure.rank() < 0 ? status : WithFact(status, "rank", std::to_string(failure.rank()));
  }
  if (checkpoint.state() == v1::Checkpoint::STATE_TAKEN) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kTaken,
                     fmt::format("{} was taken by an EXCLUSIVE client, so the daemon no longer "
                                 "holds its memory; load {} again",
                                 checkpoint.name(), checkpoint.source()),
                     facts);
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotActive,
                   fmt::format("{} is {}, not ACTIVE, so its shard cannot be used; wait for it "
                               "with `ckptctl watch {}`",
                               checkpoint.name(), NameOf(checkpoint.state()), checkpoint.name()),
                   facts);
}

absl::StatusOr<v1::RankLayout> ToRankLayout(const RankLayout& layout) {
  const auto states = [](const TargetSpec& target) { return target.expected_shape.has_value(); };
  const auto& targets = layout.targets;
  const auto stated = std::find_if(targets.begin(), targets.end(), states);
  const auto missing = std::find_if_not(targets.begin(), targets.end(), states);
  if (stated == targets.end() || missing == targets.end()) return ToProto(layout);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("making a layout: tensor {} has an expected shape and {} has none; "
                               "give those of all tensors, or none",
                               stated->name, missing->name),
                   {{"tensor", missing->name}});
}

}  // namespace client
}  // namespace ckptd

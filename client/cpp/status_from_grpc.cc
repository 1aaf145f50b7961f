#include "client/cpp/status_from_grpc.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "ckptd/v1/error.pb.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

constexpr size_t kMaxDetailBytes = 256 << 10;
constexpr int kMaxFacts = 64;
constexpr size_t kMaxReasonBytes = 64;
// gRPC's own answer, which no code of the daemon sees.
constexpr std::string_view kNoThread = "Server Threadpool Exhausted";
constexpr std::string_view kErrorInfoUrl = "type.googleapis.com/google.rpc.ErrorInfo";

bool IsReason(const std::string& text) {
  return !text.empty() && text.size() <= kMaxReasonBytes &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
         });
}

std::optional<v1::ErrorInfo> DetailsOf(const grpc::Status& status) {
  const std::string bytes = status.error_details();
  v1::ErrorStatus details;
  if (bytes.empty() || bytes.size() > kMaxDetailBytes || !details.ParseFromString(bytes)) {
    return std::nullopt;
  }
  for (const auto& any : details.details()) {
    v1::ErrorInfo info;
    if (any.type_url() == kErrorInfoUrl && info.ParseFromString(any.value()) &&
        IsReason(info.reason()) && info.metadata_size() <= kMaxFacts) {
      return info;
    }
  }
  return std::nullopt;
}

absl::StatusCode CodeOf(const grpc::Status& status) {
  const int code = status.error_code();
  return code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

absl::Status Busy(absl::StatusCode code, std::string_view doing, const Address& address) {
  return MakeError(code, reason::kTooManyWaiting,
                   fmt::format("{}: the daemon at {} has as many calls as it serves at once; ask "
                               "again later",
                               doing, address.Shown()),
                   {{"address", address.Shown()}});
}

}  // namespace

absl::Status StatusFromGrpc(const grpc::Status& status, std::string_view doing,
                            const Address& address) {
  if (status.ok()) return absl::OkStatus();
  const absl::StatusCode code = CodeOf(status);
  if (const auto info = DetailsOf(status)) {
    const Facts facts(info->metadata().begin(), info->metadata().end());
    return MakeError(code, info->reason(), status.error_message(), facts);
  }
  const Facts facts = {{"address", address.Shown()}};
  if (code == absl::StatusCode::kUnavailable) {
    return MakeError(code, reason::kDaemonUnreachable,
                     fmt::format("{}: the daemon at {} ({}) does not answer: {}; check that it "
                                 "runs and try again",
                                 doing, address.Shown(), address.chosen_by, status.error_message()),
                     facts);
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return MakeError(code, reason::kDeadline,
                     fmt::format("{}: no answer of the daemon at {} in time; look at its log, or "
                                 "allow more time",
                                 doing, address.Shown()),
                     facts);
  }
  if (code == absl::StatusCode::kUnimplemented) {
    return MakeError(code, "UNIMPLEMENTED",
                     fmt::format("{}: what listens at {} does not know this call; check that it is "
                                 "the right socket (rank-N.sock for trainers, rank-N.admin.sock "
                                 "for operators) and as new as this client",
                                 doing, address.Shown()),
                     facts);
  }
  if (status.error_message() == kNoThread) return Busy(code, doing, address);
  return MakeError(code, absl::StatusCodeToString(code),
                   fmt::format("{}: {}", doing, status.error_message()), facts);
}

}  // namespace client
}  // namespace ckptd

#include "common/base/status.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "common/base/reasons.h"

namespace ckptd {
namespace {

// Payload "reason\0key\0value\0key\0value": values never hold NUL, because
// they are paths, names and numbers; a NUL in one is replaced.
constexpr char kPayloadUrl[] = "ckptd/error";

std::string Clean(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c == '\0') c = '?';
  }
  return out;
}

std::string Encode(std::string_view reason, const Facts& facts) {
  std::string out = Clean(reason);
  for (const auto& [key, value] : facts) {
    out.push_back('\0');
    out += Clean(key);
    out.push_back('\0');
    out += Clean(value);
  }
  return out;
}

std::string Payload(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

std::string GenericReason(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       const Facts& facts) {
  absl::Status status(code, std::string(message));
  status.SetPayload(kPayloadUrl, absl::Cord(Encode(reason, facts)));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  if (status.ok()) return {};
  const std::string payload = Payload(status);
  if (payload.empty()) return GenericReason(status.code());
  return payload.substr(0, payload.find('\0'));
}

Facts FactsOf(const absl::Status& status) {
  Facts facts;
  const std::string payload = Payload(status);
  size_t at = payload.find('\0');
  while (at != std::string::npos) {
    const size_t mid = payload.find('\0', at + 1);
    if (mid == std::string::npos) break;
    const size_t end = payload.find('\0', mid + 1);
    facts[payload.substr(at + 1, mid - at - 1)] =
        payload.substr(mid + 1, end == std::string::npos ? end : end - mid - 1);
    at = end;
  }
  return facts;
}

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return MakeError(status.code(), ReasonOf(status),
                   std::string(context) + ": " + MessageOf(status), FactsOf(status));
}

absl::Status WithFact(const absl::Status& status, std::string_view key, std::string_view value) {
  if (status.ok()) return status;
  Facts facts = FactsOf(status);
  facts[std::string(key)] = std::string(value);
  return MakeError(status.code(), ReasonOf(status), MessageOf(status), facts);
}

absl::Status ErrnoStatus(int error, std::string_view doing) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  const char* why = reason::kSourceUnreadable;
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      code = absl::StatusCode::kNotFound;
      why = reason::kSourceNotFound;
      break;
    case EACCES:
    case EPERM:
      code = absl::StatusCode::kPermissionDenied;
      break;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      code = absl::StatusCode::kResourceExhausted;
      why = reason::kNoMemory;
      break;
    case EAGAIN:
    case ETIMEDOUT:
    case EIO:
    case ESTALE:
      code = absl::StatusCode::kUnavailable;
      break;
    default:
      break;
  }
  return MakeError(code, why, std::string(doing) + ": " + std::strerror(error));
}

}  // namespace ckptd

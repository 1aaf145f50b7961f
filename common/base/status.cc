#include "common/base/status.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/cord.h"
#include "common/base/reasons.h"

namespace ckptd {
namespace {

// Payload "reason\0key\0value\0key\0value". Values are paths, names and numbers, so they have no
// NUL; a NUL in one is replaced.
constexpr char kPayloadUrl[] = "ckptd/error";

std::string Clean(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c == '\0') c = '?';
  }
  return out;
}

// Names in a message come from files and other processes. A line break in one must not split a
// log line, and a long name must not displace the advice. gRPC limits a reply's metadata to 8
// KiB, including facts.
constexpr size_t kMaxSentence = 2000;
constexpr size_t kSentenceTail = 600;
constexpr std::string_view kGap = " ... ";

// The last position at or before `at` that cuts no UTF-8 sequence.
size_t BoundaryBefore(std::string_view text, size_t at) {
  for (size_t back = 0; back < 3 && at > back; ++back) {
    if ((static_cast<unsigned char>(text[at - back]) & 0xc0) != 0x80) return at - back;
  }
  return at;
}

std::string Sentence(std::string_view text) {
  std::string out(text);
  if (text.size() > kMaxSentence) {
    const size_t head = kMaxSentence - kSentenceTail - kGap.size() - 3;
    out = text.substr(0, BoundaryBefore(text, head));
    out += kGap;
    out += text.substr(BoundaryBefore(text, text.size() - kSentenceTail));
  }
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
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
  absl::Status status(code, Sentence(message));
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
    case EFBIG:
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
  std::string sentence = std::string(doing) + ": " + std::strerror(error);
  // The caller may be another user, such as root, who can read files that the daemon cannot.
  if (code == absl::StatusCode::kPermissionDenied) {
    sentence += " for uid " + std::to_string(::geteuid());
  }
  return MakeError(code, why, sentence);
}

}  // namespace ckptd

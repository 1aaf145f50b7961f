#include "client/cli/json.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <iterator>

#include "absl/status/statusor.h"
#include "client/cli/output.pb.h"
#include "client/cpp/convert.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/path_text.h"

namespace ckptd::cli {
namespace {

// The code point at the beginning of `text`; `bytes`: how long it is there.
uint32_t PointAt(std::string_view text, size_t& bytes) {
  bytes = Utf8SequenceAt(text);
  const auto first = static_cast<unsigned char>(text.front());
  if (bytes == 1) return first;
  if (bytes == 0) {
    bytes = 1;
    return 0xfffd;
  }
  uint32_t point = first & (0x7fu >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    point = point << 6 | (static_cast<unsigned char>(c) & 0x3f);
  }
  return point;
}

// Outside of strings JSON is ASCII, so the others are in strings, where they may be escaped.
std::string ToAscii(std::string_view json) {
  std::string out;
  const auto escape = [&out](uint32_t unit) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", unit);
  };
  while (!json.empty()) {
    size_t bytes = 0;
    const uint32_t point = PointAt(json, bytes);
    json.remove_prefix(bytes);
    if (point < 0x7f) {
      out += static_cast<char>(point);
    } else if (point <= 0xffff) {
      escape(point);
    } else {
      escape(0xd7c0 + (point >> 10));
      escape(0xdc00 + (point & 0x3ff));
    }
  }
  return out;
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indented;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return BadAnswer(status.ToString());
  return ToAscii(json);
}

}  // namespace

absl::Status PrintJson(const google::protobuf::Message& message, std::ostream& out) {
  CKPTD_ASSIGN_OR_RETURN(const std::string json, ToJson(message, true));
  out << json << (json.ends_with('\n') ? "" : "\n");
  return absl::OkStatus();
}

std::string ErrorJson(const absl::Status& status) {
  ErrorOutput output;
  ErrorOutput::Error& error = *output.mutable_error();
  error.set_code(absl::StatusCodeToString(status.code()));
  error.set_reason(ReasonOf(status));
  error.set_message(MessageText(MessageOf(status)));
  for (const auto& [key, value] : FactsOf(status)) {
    (*error.mutable_facts())[key] = key == "file" ? TextOfPath(value) : MessageText(value);
  }
  return ToJson(output, false).value_or("");
}

std::string MessageText(std::string_view text) {
  return ValidUtf8Prefix(text) == text.size() ? std::string(text) : Escape(text);
}

}  // namespace ckptd::cli

#include "client/cli/json.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include "absl/status/statusor.h"
#include "client/cli/output.pb.h"
#include "client/cpp/convert.h"
#include "common/base/escape.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/path_text.h"

namespace ckptd::cli {
namespace {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  options.add_whitespace = indented;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return BadAnswer(status.ToString());
  return ToAsciiJson(json);
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

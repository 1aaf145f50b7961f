// JSON for programs: the API's messages and those of output.proto, as protobuf prints them. 64-bit
// integers are strings, enum values have their full names, unset messages are left out.
#ifndef CKPTD_CLIENT_CLI_JSON_H_
#define CKPTD_CLIENT_CLI_JSON_H_

#include <google/protobuf/message.h>

#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ckptd::cli {

// Prints it indented and ASCII only, so that no name in it can control a terminal. Errors: DataLoss
// INVALID_REPLY for a time that JSON cannot express.
absl::Status PrintJson(const google::protobuf::Message& message, std::ostream& out);

// {"error": {code, reason, message, facts}} on one line.
std::string ErrorJson(const absl::Status& status);

// Text for a message, which holds only UTF-8. In other text everything odd is escaped.
std::string MessageText(std::string_view text);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_JSON_H_

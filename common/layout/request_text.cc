#include "common/layout/request_text.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/layout/rules_parser.h"

namespace ckptd {
namespace {

absl::StatusOr<std::string> ReadLayoutFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxLayoutTextBytes);
  if (text.ok()) return text;
  const absl::Status& why = text.status();
  return MakeError(why.code(), ReasonOf(why),
                   fmt::format("reading the layout: {}; name a layout file, or give fsdp:N, "
                               "hsdp:RxS or replicate:N",
                               MessageOf(why)),
                   FactsOf(why));
}

}  // namespace

absl::StatusOr<std::string> ReadLayout(const std::string& argument) {
  if (!argument.empty() && argument.front() == '@') return ReadLayoutFile(argument.substr(1));
  const size_t start = argument.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && argument[start] == '{') return argument;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(argument, ignored) ||
      std::filesystem::path(argument).extension() == ".json") {
    return ReadLayoutFile(argument);
  }
  return argument;
}

std::optional<Dtype> ParseCastDtype(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const auto& [header, torch] : {std::pair{"F16", "FLOAT16"}, std::pair{"BF16", "BFLOAT16"},
                                      std::pair{"F32", "FLOAT32"}, std::pair{"F64", "FLOAT64"}}) {
    if (upper == torch) upper = header;
  }
  const std::optional<Dtype> parsed = ParseDtype(upper);
  return parsed.has_value() && IsCastable(*parsed) ? parsed : std::nullopt;
}

}  // namespace ckptd

#include "client/cli/rename_rules.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <memory>
#include <sstream>
#include <utility>

#include "client/cli/context.h"
#include "common/base/posix.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;

struct Rule {
  std::shared_ptr<const re2::RE2> pattern;
  std::string replacement;
};

absl::StatusOr<Rule> ParseRule(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return UsageError(fmt::format("--rename {}: a rule is PATTERN=REPLACEMENT, as in "
                                  "'^model\\.=', or @FILE with one a line",
                                  text));
  }
  Rule rule;
  rule.pattern = std::make_shared<const re2::RE2>(text.substr(0, equals), re2::RE2::Quiet);
  rule.replacement = text.substr(equals + 1);
  std::string error = rule.pattern->ok() ? "" : rule.pattern->error();
  if (error.empty()) rule.pattern->CheckRewriteString(rule.replacement, &error);
  if (error.empty()) return rule;
  return UsageError(fmt::format("--rename {}: {}; patterns are those of RE2", text, error));
}

absl::StatusOr<std::vector<std::string>> LinesOf(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty() && line.front() != '#') lines.push_back(line);
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::function<std::string(const std::string&)>> ParseRenameRules(
    const std::vector<std::string>& rules) {
  std::vector<Rule> parsed;
  for (const std::string& text : rules) {
    std::vector<std::string> lines = {text};
    if (text.front() == '@') {
      CKPTD_ASSIGN_OR_RETURN(lines, LinesOf(text.substr(1)));
    }
    for (const std::string& line : lines) {
      CKPTD_ASSIGN_OR_RETURN(Rule rule, ParseRule(line));
      parsed.push_back(std::move(rule));
    }
  }
  if (parsed.empty()) return nullptr;
  return [parsed = std::move(parsed)](const std::string& name) {
    std::string out = name;
    for (const Rule& rule : parsed) re2::RE2::GlobalReplace(&out, *rule.pattern, rule.replacement);
    return out;
  };
}

}  // namespace ckptd::cli

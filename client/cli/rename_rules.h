// The rules of --rename: regular expressions that change names.
#ifndef CKPTD_CLIENT_CLI_RENAME_RULES_H_
#define CKPTD_CLIENT_CLI_RENAME_RULES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd::cli {

// Each rule is PATTERN=REPLACEMENT, or @FILE with one a line (empty ones and those that begin with #
// do not count). They apply in their order, each to every place that it matches, by the rules of RE2:
// \1 is the first group (\g<1> is none), and an empty match right behind another one does not count.
// Linear in the names, whatever the patterns. Null: there is no rule.
// Usage errors, naming the rule; those of reading a file.
absl::StatusOr<std::function<std::string(const std::string&)>> ParseRenameRules(
    const std::vector<std::string>& rules);

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_RENAME_RULES_H_

// Errors. A function that can fail returns absl::Status or absl::StatusOr; our code throws
// nothing. Besides its canonical code, an error of ours has
// - one sentence: doing what, to what, why, what to try;
// - a machine-readable reason (UPPER_SNAKE_CASE), see common/base/reasons.h;
// - facts such as file, tensor or rank.
#ifndef CKPTD_COMMON_BASE_STATUS_H_
#define CKPTD_COMMON_BASE_STATUS_H_

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

using Facts = std::map<std::string, std::string>;

// Makes an error. `code` must not be kOk.
absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       const Facts& facts = {});

// The reason of an error, or a generic one derived from its code ("INTERNAL",
// "UNAVAILABLE" ...). Empty for OK.
std::string ReasonOf(const absl::Status& status);

// The facts of an error. Empty if it has none.
Facts FactsOf(const absl::Status& status);

// The message as std::string (absl::string_view is not std::string_view here).
std::string MessageOf(const absl::Status& status);

// The same error with `context` + ": " before its sentence. Code, reason and facts are kept. OK
// stays OK.
absl::Status WithContext(const absl::Status& status, std::string_view context);

// The same error with one more fact.
absl::Status WithFact(const absl::Status& status, std::string_view key, std::string_view value);

// The error of a failed system call. `doing` names the action and its object, such as "opening
// /data/model.safetensors". Code and reason follow from `error`.
absl::Status ErrnoStatus(int error, std::string_view doing);

}  // namespace ckptd

#define CKPTD_STATUS_CONCAT_INNER(a, b) a##b
#define CKPTD_STATUS_CONCAT(a, b) CKPTD_STATUS_CONCAT_INNER(a, b)

#define CKPTD_RETURN_IF_ERROR(expr)                        \
  do {                                                     \
    if (::absl::Status ckptd_status_ = (expr); !ckptd_status_.ok()) { \
      return ckptd_status_;                                \
    }                                                      \
  } while (false)

// No parentheses around lhs, because it may be a declaration.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define CKPTD_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) {                                   \
    return std::move(tmp).status();                  \
  }                                                  \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)

#define CKPTD_ASSIGN_OR_RETURN(lhs, expr) \
  CKPTD_ASSIGN_OR_RETURN_INNER(CKPTD_STATUS_CONCAT(ckptd_statusor_, __LINE__), lhs, expr)

#endif  // CKPTD_COMMON_BASE_STATUS_H_

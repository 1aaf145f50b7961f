// gtest matchers for absl::Status and absl::StatusOr.
#ifndef CKPTD_TESTS_TESTING_STATUS_MATCHERS_H_
#define CKPTD_TESTS_TESTING_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/status.h"

namespace ckptd {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// An error with this code and reason.
MATCHER_P2(FailsWith, code, reason, "fails with that code and reason") {
  *result_listener << StatusOf(arg).ToString() << " reason " << ReasonOf(StatusOf(arg));
  return StatusOf(arg).code() == code && ReasonOf(StatusOf(arg)) == reason;
}

// An error whose sentence contains `text`.
MATCHER_P(Says, text, "says " + std::string(text)) {
  *result_listener << StatusOf(arg).ToString();
  return MessageOf(StatusOf(arg)).find(text) != std::string::npos;
}

}  // namespace ckptd

#define ASSERT_OK(expr) ASSERT_THAT((expr), ::ckptd::IsOk())
#define EXPECT_OK(expr) EXPECT_THAT((expr), ::ckptd::IsOk())
#define ASSERT_OK_AND_ASSIGN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  ASSERT_THAT(tmp, ::ckptd::IsOk());               \
  lhs = std::move(tmp).value()
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_INNER(CKPTD_STATUS_CONCAT(ckptd_test_, __LINE__), lhs, expr)

#endif  // CKPTD_TESTS_TESTING_STATUS_MATCHERS_H_

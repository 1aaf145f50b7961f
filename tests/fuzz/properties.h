// What every fuzzer asserts, beyond that nothing crashes.
#ifndef CKPTD_TESTS_FUZZ_PROPERTIES_H_
#define CKPTD_TESTS_FUZZ_PROPERTIES_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/status.h"

namespace ckptd::fuzz {

// Ends the process, which libFuzzer reports with the input, unless `condition`.
inline void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// A sentence that a terminal, a log line and a gRPC trailer take as it is.
inline void RequireOneLine(const std::string& sentence) {
  constexpr size_t kLongest = 2048;
  Require(!sentence.empty() && sentence.size() <= kLongest, "it is short: " + sentence);
  Require(std::none_of(sentence.begin(), sentence.end(),
                       [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
          "it is one line: " + sentence);
}

// A refusal has a reason of ours, and is one sentence.
inline void RequireGoodError(const absl::Status& error) {
  const std::string sentence = MessageOf(error);
  const std::string shown = "[" + ReasonOf(error) + "] " + sentence;
  Require(!error.ok(), "a refusal must be an error");
  Require(ReasonOf(error) != absl::StatusCodeToString(error.code()), "it has a reason: " + shown);
  Require(error.code() != absl::StatusCode::kInternal, "it blames the input: " + shown);
  RequireOneLine(sentence);
}

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_PROPERTIES_H_

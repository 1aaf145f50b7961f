// Pickles in tests: bytes written by hand, and what they describe as one line.
#ifndef CKPTD_TESTS_UNIT_COMMON_SOURCE_PICKLE_SHOW_H_
#define CKPTD_TESTS_UNIT_COMMON_SOURCE_PICKLE_SHOW_H_

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "common/source/pickle/pickle.h"

namespace ckptd::pickle {

inline absl::StatusOr<Parsed> ParseBytes(std::string_view bytes, const Limits& limits = {}) {
  return Parse(std::as_bytes(std::span(bytes)), limits);
}

// As Python would write it: "{'a': [1, 2.5]}"; symbols as <module.Name>, records as
// module.Name(arguments, **keywords){entries}[appended].state, persistent objects as @id, and
// "..." for what lies deep.
inline std::string Show(const Value* value, int depth = 0);

inline std::string ShowAll(Items items, int depth) {
  std::string out;
  for (const Value* item : items) out += (out.empty() ? "" : ", ") + Show(item, depth);
  return out;
}

inline std::string ShowPairs(Entries entries, int depth) {
  std::string out;
  for (const Entry& entry : entries) {
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", Show(entry.key, depth),
                       Show(entry.value, depth));
  }
  return "{" + out + "}";
}

inline std::string ShowRecord(const Value& value, int depth) {
  std::string callee = Show(value.callee(), depth);
  if (value.callee()->is(Kind::kSymbol)) callee = std::string(value.callee()->text());
  std::string arguments = ShowAll(value.items(), depth);
  if (value.keywords() != nullptr) arguments += ", **" + Show(value.keywords(), depth);
  std::string out = fmt::format("{}({})", callee, arguments);
  if (!value.entries().empty()) out += ShowPairs(value.entries(), depth);
  if (!value.appended().empty()) out += "[" + ShowAll(value.appended(), depth) + "]";
  return out;
}

inline std::string ShowContent(const Value& value, int depth) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer());
    case Kind::kBigInt:
      return std::string(value.text());
    case Kind::kFloat:
      return fmt::format("{}", value.real());
    case Kind::kComplex:
      return fmt::format("({}+{}j)", value.real(), value.imaginary());
    case Kind::kText:
      return fmt::format("'{}'", value.text());
    case Kind::kBytes:
      return fmt::format("b'{}'", absl::CHexEscape(std::string(value.text())));
    case Kind::kList:
      return "[" + ShowAll(value.items(), depth) + "]";
    case Kind::kTuple:
      return "(" + ShowAll(value.items(), depth) + ")";
    case Kind::kSet:
      return "set(" + ShowAll(value.items(), depth) + ")";
    case Kind::kDict:
      return ShowPairs(value.entries(), depth);
    case Kind::kSymbol:
      return fmt::format("<{}>", value.text());
    case Kind::kRecord:
      return ShowRecord(value, depth);
    case Kind::kPersistent:
      return "@" + ShowAll(value.items(), depth);
  }
  return "?";
}

inline std::string Show(const Value* value, int depth) {
  if (depth > 6) return "...";
  const std::string out = ShowContent(*value, depth + 1);
  return value->state() == nullptr ? out : out + "." + Show(value->state(), depth + 1);
}

// Shows a whole pickle; gives "REASON: sentence" for one that is refused.
inline std::string ShowPickle(std::string_view bytes) {
  const auto parsed = ParseBytes(bytes);
  if (!parsed.ok()) return ReasonOf(parsed.status()) + ": " + MessageOf(parsed.status());
  if (parsed->bytes != bytes.size()) return "left bytes unread";
  return Show(parsed->document.root);
}

}  // namespace ckptd::pickle

#endif  // CKPTD_TESTS_UNIT_COMMON_SOURCE_PICKLE_SHOW_H_

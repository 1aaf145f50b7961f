#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/plan/view/view.h"

namespace ckptd::view {
namespace {

constexpr std::string_view kAnyNumber = "(?P<index>\\d+)";

// A pattern or a new name as text and what stands for the text of parentheses.
struct Token {
  std::string text;  // as it is in names; of parentheses: empty
  int group = 0;     // from 1; 0: text
  bool number = false;  // {} or (?P<index>...)
};
struct Spelling {
  std::vector<Token> tokens;
  std::vector<std::string> groups;  // their patterns, with the parentheses
  bool from_begin = false, to_end = false;  // ^ and $

  void Add(char c) {
    if (tokens.empty() || tokens.back().group != 0 || tokens.back().number) tokens.emplace_back();
    tokens.back().text += c;
  }
};

// The end of the parentheses that begin at `at`; npos: they hold others that count.
size_t EndOfGroup(std::string_view pattern, size_t at) {
  bool in_class = false;
  size_t open = 0;
  for (size_t i = at; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') ++i;
    } else if (c == '(') {
      const bool counts = pattern.substr(i, 3) != "(?:";
      if (++open > 1 && counts) return std::string_view::npos;
    } else if (c == ')' && --open == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// Reads a pattern of text and parentheses. Returns why it is another one.
std::string ReadPattern(std::string_view pattern, Spelling& out) {
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c == '^' && i == 0) {
      out.from_begin = true;
      ++i;
    } else if (c == '$' && i + 1 == pattern.size()) {
      out.to_end = true;
      ++i;
    } else if (c == '\\' && i + 1 < pattern.size() && std::ispunct(static_cast<unsigned char>(pattern[i + 1])) != 0) {
      out.Add(pattern[i + 1]);
      i += 2;
    } else if (c == '(') {
      const size_t end = EndOfGroup(pattern, i);
      const std::string_view group = end == std::string_view::npos ? "" : pattern.substr(i, end - i);
      if (group.empty() || (group.starts_with("(?") && !group.starts_with("(?P<"))) {
        return "its parentheses hold others, or flags";
      }
      out.groups.emplace_back(group);
      out.tokens.push_back({"", static_cast<int>(out.groups.size()), group.starts_with("(?P<index>")});
      i = end;
    } else if (std::string_view(".*+?[]{}|)\\^$").find(c) != std::string_view::npos) {
      return fmt::format("\"{}\" outside of parentheses matches what the new name does not say", c);
    } else {
      out.Add(c);
      ++i;
    }
  }
  return "";
}

Spelling ReadRewrite(std::string_view to, bool numbered) {
  Spelling out;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] == '\\' && i + 1 < to.size()) {
      const char c = to[++i];
      if (c >= '0' && c <= '9') {
        out.tokens.push_back({"", c == '0' ? 10 : c - '0', false});  // \\0 is no parentheses
      } else {
        out.Add(c);
      }
    } else if (numbered && to.substr(i, 2) == "{}") {
      out.tokens.push_back({"", 0, true});
      ++i;
    } else {
      out.Add(to[i]);
    }
  }
  return out;
}

// Of a rule's pattern and new name the pattern that finds that name, and what gives the first one back.
struct Swapped {
  std::string from, to;
  std::vector<int> order;  // the groups of the old pattern, as the new one has them
};

std::string QuotedRewrite(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return out;
}

// The groups' new numbers. Why they have none: one that the new name has not, or has twice.
std::string NumberGroups(const Spelling& pattern, const Spelling& name, RuleKind kind,
                         std::map<int, int>& number) {
  int next = 0;
  for (const Token& token : name.tokens) {
    if (token.number) {
      ++next;
    } else if (token.group != 0 && !number.emplace(token.group, ++next).second) {
      return fmt::format("its new name has \\{} twice", token.group);
    }
  }
  for (const Token& token : pattern.tokens) {
    const bool goes = token.number && kind == RuleKind::kStack;
    if (token.group != 0 && !goes && !number.contains(token.group)) {
      return fmt::format("its new name does not have \\{}", token.group);
    }
  }
  return next > 9 ? "it has more than nine parentheses" : "";
}

std::string Swap(const std::string& from, const std::string& to, RuleKind kind, Swapped& out) {
  Spelling pattern;
  std::string why = ReadPattern(from, pattern);
  if (!why.empty()) return why;
  const Spelling name = ReadRewrite(to, kind == RuleKind::kUnstack);
  std::map<int, int> number;
  why = NumberGroups(pattern, name, kind, number);
  if (!why.empty()) return why;
  if (pattern.from_begin) out.from += '^';
  int index_at = 0, next = 0;
  for (const Token& token : name.tokens) {
    if (token.number) {
      if (index_at != 0) return "its new name has {} twice";
      index_at = ++next;
      out.from += kAnyNumber;
    } else if (token.group != 0) {
      ++next;
      if (token.group > static_cast<int>(pattern.groups.size())) return "it has no such parentheses";
      out.from += pattern.groups[static_cast<size_t>(token.group) - 1];
      out.order.push_back(token.group);
    } else {
      out.from += re2::RE2::QuoteMeta(token.text);
    }
  }
  if (pattern.to_end) out.from += '$';
  for (const Token& token : pattern.tokens) {
    if (kind == RuleKind::kStack && token.number) {
      out.to += "{}";
    } else if (token.group != 0) {
      out.to += fmt::format("\\{}", number.at(token.group));
    } else if (kind == RuleKind::kStack && token.text.find("{}") != std::string::npos) {
      return "its names hold {}";
    } else {
      out.to += QuotedRewrite(token.text);
    }
  }
  return "";
}

// Of `rule`, which has a name and a pattern each, or one of them several.
std::string SwapNames(const Rule& rule, Rule& back) {
  std::vector<int> order;
  const size_t parts = std::max(rule.from.size(), rule.to.size());
  for (size_t i = 0; i < parts; ++i) {
    Swapped swapped;
    std::string why = Swap(rule.from[std::min(i, rule.from.size() - 1)],
                           rule.to[std::min(i, rule.to.size() - 1)], rule.kind, swapped);
    if (!why.empty()) return why;
    if (i > 0 && swapped.order != order) return "its new names have their parentheses in other orders";
    order = swapped.order;
    if (i < rule.to.size()) back.from.push_back(std::move(swapped.from));
    if (i < rule.from.size()) back.to.push_back(std::move(swapped.to));
  }
  return "";
}

std::string InvertAxes(const Rule& rule, Rule& back) {
  back.axes.resize(rule.axes.size());
  for (size_t i = 0; i < rule.axes.size(); ++i) back.axes[rule.axes[i]] = i;
  back.from = rule.from;
  return "";
}

std::string InvertRule(const Rule& rule, Rule& back) {
  back = {.axis = rule.axis, .sizes = rule.sizes, .shares = rule.shares, .groups = rule.groups,
          .optional = rule.optional};
  switch (rule.kind) {
    case RuleKind::kRename: back.kind = RuleKind::kRename; return SwapNames(rule, back);
    case RuleKind::kStack: back.kind = RuleKind::kUnstack; return SwapNames(rule, back);
    case RuleKind::kUnstack: back.kind = RuleKind::kStack; return SwapNames(rule, back);
    case RuleKind::kTranspose: back.kind = RuleKind::kTranspose; return InvertAxes(rule, back);
    case RuleKind::kSplit:
      back.kind = RuleKind::kFuse;
      if (rule.sizes.empty() && rule.shares.empty()) back.shares.assign(rule.to.size(), 1);
      return SwapNames(rule, back);
    case RuleKind::kFuse:
      back.kind = RuleKind::kSplit;
      if (rule.sizes.empty() && rule.shares.empty()) {
        return "it does not say how large its parts are: give it \"sizes\" or \"shares\"";
      }
      return SwapNames(rule, back);
    case RuleKind::kTie:
      back.kind = RuleKind::kDrop;
      back.from = {re2::RE2::QuoteMeta(rule.to.front())};
      return "";
    case RuleKind::kUntie: return "it does not say which tensor it was a name of";
    case RuleKind::kSlice:
    case RuleKind::kDrop: return "what it leaves out is not there any more";
  }
  return "";
}

}  // namespace

absl::StatusOr<View> Inverse(const View& view) {
  View inverse;
  for (size_t i = view.rules.size(); i-- > 0;) {
    const Rule& rule = view.rules[i];
    const std::string why = InvertRule(rule, inverse.rules.emplace_back());
    if (why.empty()) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                     fmt::format("inverting rule {} of the view ({} {}): {}", i + 1,
                                 NameOf(rule.kind), rule.from.front(), why),
                     {{"rule", fmt::format("{}", i + 1)}});
  }
  return inverse;
}

}  // namespace ckptd::view

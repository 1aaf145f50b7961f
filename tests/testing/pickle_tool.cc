// Reads lines of hexadecimal, each a pickle; prints a line of JSON for each: ["error", reason,
// sentence], or what it describes as [kind, ...]. A container that comes again is ["again",
// number]: containers are numbered in the order in which they begin. For
// tests/python/test_pickles.py.
//   pickle_tool --time FILE    MB for each second of the processor that reading it takes, the best
//   of several times
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <limits>
#include <map>
#include <span>
#include <string>

#include "absl/strings/escaping.h"
#include "common/base/json.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "common/source/pickle/pickle.h"

namespace ckptd::pickle {
namespace {

constexpr int kDeepest = 400;

std::string Quote(std::string_view text) { return JsonString(text, JsonCharacters::kAscii); }

class Printer {
 public:
  std::string Print(const Value* value, int depth = 0) {
    if (value == nullptr) return "null";
    if (depth > kDeepest) return R"(["deep"])";
    switch (value->kind()) {
      case Kind::kNone:
        return R"(["none"])";
      case Kind::kBool:
        return fmt::format(R"(["bool",{}])", value->boolean());
      case Kind::kInt:
        return fmt::format(R"(["int","{}"])", value->integer());
      case Kind::kBigInt:
        return fmt::format(R"(["int","{}"])", value->text());
      case Kind::kFloat:
        return fmt::format(R"(["float","{:a}"])", value->real());
      case Kind::kComplex:
        return fmt::format(R"(["complex","{:a}","{:a}"])", value->real(), value->imaginary());
      case Kind::kText:
        return fmt::format(R"(["text",{}])", Quote(value->text()));
      case Kind::kBytes:
        return fmt::format(R"(["bytes","{}"])", absl::BytesToHexString(std::string(value->text())));
      case Kind::kSymbol:
        return fmt::format(R"(["symbol",{}])", Quote(value->text()));
      default:
        return Container(*value, depth + 1);
    }
  }

 private:
  std::string Container(const Value& value, int depth) {
    // The empty tuple is one for all.
    if (value.is(Kind::kTuple) && value.items().empty())
      return R"(["tuple",[],[],[],null,null,null])";
    const auto [found, is_new] = numbers_.emplace(&value, numbers_.size());
    if (!is_new) return fmt::format(R"(["again",{}])", found->second);
    static const std::map<Kind, std::string_view> kNames = {
        {Kind::kList, "list"}, {Kind::kTuple, "tuple"},   {Kind::kSet, "set"},
        {Kind::kDict, "dict"}, {Kind::kRecord, "record"}, {Kind::kPersistent, "persistent"}};
    const std::string callee = Print(value.callee(), depth);
    const std::string items = All(value.items(), depth);
    const std::string entries = Pairs(value.entries(), depth);
    const std::string appended = All(value.appended(), depth);
    const std::string keywords = Print(value.keywords(), depth);
    const std::string state = Print(value.state(), depth);
    return fmt::format(R"(["{}",{},{},{},{},{},{}])", kNames.at(value.kind()), items, entries,
                       appended, callee, keywords, state);
  }

  std::string All(Items items, int depth) {
    std::string out = "[";
    for (const Value* item : items) out += (out.size() > 1 ? "," : "") + Print(item, depth);
    return out + "]";
  }

  std::string Pairs(Entries entries, int depth) {
    std::string out = "[";
    for (const Entry& entry : entries) {
      const std::string key = Print(entry.key, depth);
      out += fmt::format("{}[{},{}]", out.size() > 1 ? "," : "", key, Print(entry.value, depth));
    }
    return out + "]";
  }

  std::map<const Value*, size_t> numbers_;
};

std::string Describe(std::string_view bytes) {
  const auto parsed = Parse(std::as_bytes(std::span(bytes)));
  if (parsed.ok()) return Printer().Print(parsed->document.root);
  return fmt::format(R"(["error",{},{}])", Quote(ReasonOf(parsed.status())),
                     Quote(MessageOf(parsed.status())));
}

int Time(const char* path) {
  const auto bytes = ReadSmallFile(path, size_t{1} << 30);
  if (!bytes.ok()) return 2;
  constexpr int kTimes = 7;
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kTimes; ++i) {
    const std::clock_t start = std::clock();
    const auto parsed = Parse(std::as_bytes(std::span(*bytes)));
    const std::clock_t took = std::clock() - start;
    if (!parsed.ok()) return 1;
    best = std::min(best, static_cast<double>(took) / CLOCKS_PER_SEC);
  }
  fmt::print("{:.0f}\n", static_cast<double>(bytes->size()) / best / 1e6);
  return 0;
}

}  // namespace
}  // namespace ckptd::pickle

int main(int count, char** arguments) {
  if (count == 3 && std::string_view(arguments[1]) == "--time") {
    return ckptd::pickle::Time(arguments[2]);
  }
  std::string line;
  std::string bytes;
  while (std::getline(std::cin, line)) {
    bytes = absl::HexStringToBytes(line);
    std::cout << ckptd::pickle::Describe(bytes) << std::endl;
  }
  return 0;
}

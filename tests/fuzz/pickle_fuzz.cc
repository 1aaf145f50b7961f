// Feeds arbitrary bytes to the interpreter of pickles. What is accepted must hold together, cost
// memory in proportion to the input, and call nothing that executes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/base/utf8.h"
#include "common/source/pickle/pickle.h"
#include "tests/fuzz/properties.h"

namespace ckptd::fuzz {
namespace {

using pickle::Kind;
using pickle::Value;

// A value of each opcode, of 24 bytes, what a record has besides, and blocks that are half full.
constexpr size_t kMemoryPerByte = 128;
constexpr size_t kMemoryAlways = 16 * 1024;

// All values that a document reaches, each once.
class Walk {
 public:
  void All(const Value* root) {
    Visit(root);
    while (!open_.empty()) {
      const Value* const value = open_.back();
      open_.pop_back();
      Check(*value);
    }
  }

 private:
  void Visit(const Value* value) {
    Require(value != nullptr, "a value is there");
    if (seen_.insert(value).second) open_.push_back(value);
  }

  void VisitIfThere(const Value* value) {
    if (value != nullptr) Visit(value);
  }

  void Check(const Value& value) {
    for (const Value* item : value.items()) Visit(item);
    for (const Value* item : value.appended()) Visit(item);
    for (const pickle::Entry& entry : value.entries()) {
      Visit(entry.key);
      Visit(entry.value);
    }
    VisitIfThere(value.state());
    VisitIfThere(value.keywords());
    if (value.is(Kind::kText) || value.is(Kind::kSymbol)) {
      Require(ValidUtf8Prefix(value.text()) == value.text().size(), "a text is UTF-8");
    }
    if (value.is(Kind::kPersistent)) Require(value.items().size() == 1, "it has one id");
    if (!value.is(Kind::kRecord)) return;
    Visit(value.callee());
    for (const std::string_view module : {"os.", "posix.", "subprocess.", "sys."}) {
      Require(!value.ClassName().starts_with(module), "nothing is called that executes");
    }
    Require(value.ClassName() != "builtins.eval", "nothing is called that executes");
  }

  std::vector<const Value*> open_;
  std::unordered_set<const Value*> seen_;
};

void FuzzPickle(std::span<const std::byte> bytes) {
  const pickle::Limits limits = {.depth = 200, .text_bytes = 4096, .number_bytes = 64};
  const auto parsed = pickle::Parse(bytes, limits);
  if (!parsed.ok()) return RequireGoodError(parsed.status());
  Require(parsed->bytes <= bytes.size(), "it ends in the input");
  Require(bytes[parsed->bytes - 1] == std::byte{'.'}, "it ends at its STOP");
  Require(parsed->document.protocol <= 5, "it is of a protocol that is read");
  Require(parsed->document.arena.bytes() <= kMemoryPerByte * parsed->bytes + kMemoryAlways,
          "memory is proportional to the input");
  Walk().All(parsed->document.root);
}

}  // namespace
}  // namespace ckptd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::fuzz::FuzzPickle(std::as_bytes(std::span(data, size)));
  return 0;
}

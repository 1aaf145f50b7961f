// Opcodes that name classes and functions, and that would build objects.
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/source/pickle/interpreter.h"
#include "common/source/pickle/symbols.h"

namespace ckptd::pickle {
namespace {

// Longer than any name in a program.
constexpr size_t kLongestName = 4096;

}  // namespace

absl::Status Interpreter::PushSymbol(std::string_view module, std::string_view name) {
  if (module.size() + name.size() > kLongestName) {
    return PastLimit("bytes for the name of a class", kLongestName);
  }
  const std::string symbol = SymbolName(module, name, protocol_);
  if (ValidUtf8Prefix(symbol) != symbol.size()) return Damaged("the name of a class is not UTF-8");
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(symbol.size()));
  Push(builder_.Symbol(symbol, static_cast<uint8_t>(MeaningOf(symbol))));
  return absl::OkStatus();
}

absl::Status Interpreter::Global() {
  std::string_view module;
  std::string_view name;
  CKPTD_RETURN_IF_ERROR(TakeLine(module));
  CKPTD_RETURN_IF_ERROR(TakeLine(name));
  return PushSymbol(module, name);
}

absl::Status Interpreter::StackGlobal() {
  CKPTD_RETURN_IF_ERROR(Need(2));
  const Value* const name = PopTop();
  const Value* const module = PopTop();
  if (!name->is(Kind::kText) || !module->is(Kind::kText)) {
    return Damaged("the name of a class is no text");
  }
  return PushSymbol(module->text(), name->text());
}

absl::Status Interpreter::PushCall(const Value* callee, Items arguments, const Value* keywords) {
  const bool can_be_called =
      callee->is(Kind::kSymbol) || callee->is(Kind::kRecord) || callee->is(Kind::kPersistent);
  if (!can_be_called) return Damaged("it calls what is neither a class nor a function");
  CKPTD_ASSIGN_OR_RETURN(const Value* const made, caller_.Call(*callee, arguments, keywords));
  Push(made);
  return absl::OkStatus();
}

absl::Status Interpreter::Reduce() {
  CKPTD_RETURN_IF_ERROR(Need(2));
  const Value* const arguments = PopTop();
  const Value* const callee = PopTop();
  if (!arguments->is(Kind::kTuple)) return Damaged("the arguments of a call are no tuple");
  return PushCall(callee, arguments->items(), nullptr);
}

// Classes are called where Python calls their __new__: neither happens here.
absl::Status Interpreter::NewObj() { return Reduce(); }

absl::Status Interpreter::NewObjEx() {
  CKPTD_RETURN_IF_ERROR(Need(3));
  const Value* const keywords = PopTop();
  const Value* const arguments = PopTop();
  const Value* const callee = PopTop();
  if (!arguments->is(Kind::kTuple) || !keywords->is(Kind::kDict)) {
    return Damaged("the arguments of a call are no tuple and no dict");
  }
  return PushCall(callee, arguments->items(), keywords);
}

absl::Status Interpreter::Inst() {
  CKPTD_RETURN_IF_ERROR(Global());
  const Value* const callee = PopTop();
  Items group;
  CKPTD_RETURN_IF_ERROR(Group(group));
  const Items arguments = builder_.Keep(group);
  EndGroup();
  return PushCall(callee, arguments, nullptr);
}

absl::Status Interpreter::Obj() {
  Items group;
  CKPTD_RETURN_IF_ERROR(Group(group));
  if (group.empty()) return Damaged("it makes an object of no class");
  const Value* const callee = group[0];
  const Items arguments = builder_.Keep(group.subspan(1));
  EndGroup();
  return PushCall(callee, arguments, nullptr);
}

absl::Status Interpreter::Build() {
  CKPTD_RETURN_IF_ERROR(Need(2));
  const Value* const state = PopTop();
  const Value& into = Top();
  const bool has_state =
      into.is(Kind::kRecord) || into.is(Kind::kDict) || into.is(Kind::kList) || into.is(Kind::kSet);
  if (!has_state) return Damaged("its opcode sets attributes of what has none");
  builder_.SetState(into, state);
  return absl::OkStatus();
}

absl::Status Interpreter::PersistentLine() {
  std::string_view line;
  CKPTD_RETURN_IF_ERROR(TakeLine(line));
  CKPTD_RETURN_IF_ERROR(PushText(line));
  return Persistent();
}

absl::Status Interpreter::Persistent() {
  CKPTD_RETURN_IF_ERROR(Need(1));
  const Value* const id = PopTop();
  Push(builder_.Persistent(id));
  return absl::OkStatus();
}

}  // namespace ckptd::pickle

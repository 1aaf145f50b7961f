#include "common/source/pickle/caller.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/pickle/escapes.h"
#include "common/source/pickle/numpy_scalar.h"
#include "common/source/pickle/symbols.h"

namespace ckptd::pickle {
namespace {

// How many values are looked at to find what a call reaches, each time: exploits are short.
constexpr size_t kMostLookedAt = 64;
// The most bytes of a name that an error shows.
constexpr size_t kMostShown = 200;

Meaning MeaningOf(const Value& value) {
  return value.is(Kind::kSymbol) ? static_cast<Meaning>(Builder::MeaningOf(value))
                                 : Meaning::kUnknown;
}

absl::Status Unsafe(const Value& symbol) {
  const std::string name = Escape(symbol.text().substr(0, kMostShown));
  return MakeError(
      absl::StatusCode::kPermissionDenied, reason::kSourceUnsafe,
      fmt::format("its pickle would run {}, which no checkpoint needs; nothing of it "
                  "was run: find out who wrote the file, and open it with nothing else",
                  name),
      {{"calls", name}});
}

// The first that executes of a callee, its arguments and what they were made of; nullptr: none.
const Value* FindExecuting(const Value& callee, Items arguments) {
  std::vector<const Value*> open = {&callee};
  open.insert(
      open.end(), arguments.begin(),
      arguments.begin() + static_cast<std::ptrdiff_t>(std::min(arguments.size(), kMostLookedAt)));
  for (size_t i = 0; i < open.size() && i < kMostLookedAt; ++i) {
    const Value& value = *open[i];
    if (MeaningOf(value) == Meaning::kExecutes) return &value;
    if (value.is(Kind::kRecord)) open.push_back(value.callee());
    const Items items = value.is(Kind::kPersistent) ? Items() : value.items();
    open.insert(open.end(), items.begin(),
                items.begin() + static_cast<std::ptrdiff_t>(std::min(items.size(), kMostLookedAt)));
  }
  return nullptr;
}

bool AreTexts(Items arguments) {
  return std::all_of(arguments.begin(), arguments.end(),
                     [](const Value* value) { return value->is(Kind::kText); });
}

std::optional<double> RealNumber(const Value& value) {
  if (value.is(Kind::kFloat)) return value.real();
  if (value.is(Kind::kInt)) return static_cast<double>(value.integer());
  return std::nullopt;
}

bool IsLatin1(std::string_view encoding) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"latin1", "latin-1", "latin_1", "iso-8859-1", "iso8859-1", "ascii"});
  return std::find(kNames.begin(), kNames.end(), encoding) != kNames.end();
}

}  // namespace

absl::StatusOr<const Value*> Caller::Call(const Value& callee, Items arguments,
                                          const Value* keywords) {
  const Meaning meaning = MeaningOf(callee);
  if (meaning == Meaning::kExecutes) return Unsafe(callee);
  // A call of what a call gave, and of what calls its arguments, may reach what executes.
  if (callee.is(Kind::kRecord) || meaning == Meaning::kCallsArguments) {
    const Value* const executing = FindExecuting(callee, arguments);
    if (executing != nullptr) return Unsafe(*executing);
  } else if (meaning != Meaning::kUnknown && keywords == nullptr) {
    CKPTD_ASSIGN_OR_RETURN(const Value* const made, Construct(callee, arguments));
    if (made != nullptr) return made;
  }
  return builder_.Record(&callee, arguments, keywords);
}

absl::StatusOr<const Value*> Caller::Construct(const Value& symbol, Items arguments) {
  switch (MeaningOf(symbol)) {
    case Meaning::kOrderedDict:
      return OrderedDict(arguments);
    case Meaning::kSet:
      return Set(arguments);
    case Meaning::kBytes:
      return Bytes(arguments);
    case Meaning::kComplex:
      return Complex(arguments);
    case Meaning::kEncode:
      return Encode(arguments);
    case Meaning::kSize:
      return Size(arguments);
    case Meaning::kNumpyScalar:
      return NumpyScalar(arguments, builder_);
    case Meaning::kGetattr:
      return Getattr(arguments);
    case Meaning::kReconstructor:
      return Reconstructor(arguments);
    case Meaning::kNewObj:
      return NewObj(arguments);
    case Meaning::kNewObjEx:
      return NewObjEx(arguments);
    default:
      return nullptr;
  }
}

// Python 2 gives it a list of its pairs.
absl::StatusOr<const Value*> Caller::OrderedDict(Items arguments) {
  if (arguments.empty()) return builder_.Dict();
  if (arguments.size() != 1 || !arguments[0]->is(Kind::kList)) return nullptr;
  const Items pairs = arguments[0]->items();
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(2 * pairs.size()));
  std::vector<const Value*> flat;
  flat.reserve(2 * pairs.size());
  for (const Value* pair : pairs) {
    const bool is_pair =
        (pair->is(Kind::kList) || pair->is(Kind::kTuple)) && pair->items().size() == 2;
    if (!is_pair) return nullptr;
    flat.insert(flat.end(), pair->items().begin(), pair->items().end());
  }
  const Value* const dict = builder_.Dict();
  builder_.Put(*dict, flat);
  return dict;
}

absl::StatusOr<const Value*> Caller::Set(Items arguments) {
  if (arguments.empty()) return builder_.Set({});
  const Value& from = *arguments[0];
  if (arguments.size() != 1 || (!from.is(Kind::kList) && !from.is(Kind::kTuple))) return nullptr;
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(from.items().size()));
  return builder_.Set(from.items());
}

absl::StatusOr<const Value*> Caller::Size(Items arguments) {
  if (arguments.empty()) return Builder::EmptyTuple();
  const Value& from = *arguments[0];
  if (arguments.size() != 1 || (!from.is(Kind::kList) && !from.is(Kind::kTuple))) return nullptr;
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(from.items().size()));
  return builder_.Tuple(from.items());
}

absl::StatusOr<const Value*> Caller::Encoded(const Value& text, std::string_view encoding) {
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(text.text().size()));
  if (encoding == "utf-8" || encoding == "utf8") return builder_.Bytes(text.text());
  if (!IsLatin1(encoding)) return nullptr;
  const std::optional<std::string> bytes = Latin1(text.text());
  return bytes.has_value() ? builder_.Bytes(*bytes) : nullptr;
}

absl::StatusOr<const Value*> Caller::Bytes(Items arguments) {
  if (arguments.empty()) return builder_.Bytes("");
  if (arguments.size() == 2 && AreTexts(arguments)) {
    return Encoded(*arguments[0], arguments[1]->text());
  }
  if (arguments.size() != 1 || !arguments[0]->is(Kind::kBytes)) return nullptr;
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(arguments[0]->text().size()));
  return builder_.Bytes(arguments[0]->text());
}

absl::StatusOr<const Value*> Caller::Encode(Items arguments) {
  if (arguments.empty() || arguments.size() > 2 || !AreTexts(arguments)) return nullptr;
  return Encoded(*arguments[0], arguments.size() == 2 ? arguments[1]->text() : "utf-8");
}

const Value* Caller::Complex(Items arguments) {
  if (arguments.size() != 2) return nullptr;
  const std::optional<double> real = RealNumber(*arguments[0]);
  const std::optional<double> imaginary = RealNumber(*arguments[1]);
  return real && imaginary ? builder_.Complex(*real, *imaginary) : nullptr;
}

// A name within a class: "module.Outer.Inner".
absl::StatusOr<const Value*> Caller::Getattr(Items arguments) {
  if (arguments.size() < 2 || !arguments[0]->is(Kind::kSymbol) || !arguments[1]->is(Kind::kText)) {
    return nullptr;
  }
  const size_t bytes = arguments[0]->text().size() + arguments[1]->text().size() + 1;
  CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(bytes));
  const std::string name = fmt::format("{}.{}", arguments[0]->text(), arguments[1]->text());
  return builder_.Symbol(name, static_cast<uint8_t>(pickle::MeaningOf(std::string_view(name))));
}

// _reconstructor(class, base, state): base.__new__(class, state), where state is a plain value if
// the class is made of one.
absl::StatusOr<const Value*> Caller::Reconstructor(Items arguments) {
  if (arguments.size() != 3) return nullptr;
  const bool is_plain = arguments[1]->IsSymbol("builtins.object");
  return NewObj(is_plain ? arguments.first(1)
                         : builder_.Keep(std::to_array({arguments[0], arguments[2]})));
}

absl::StatusOr<const Value*> Caller::NewObj(Items arguments) {
  if (arguments.empty() || !arguments[0]->is(Kind::kSymbol)) return nullptr;
  if (MeaningOf(*arguments[0]) == Meaning::kExecutes) return Unsafe(*arguments[0]);
  return builder_.Record(arguments[0], arguments.subspan(1), nullptr);
}

absl::StatusOr<const Value*> Caller::NewObjEx(Items arguments) {
  const bool is_new = arguments.size() == 3 && arguments[0]->is(Kind::kSymbol) &&
                      arguments[1]->is(Kind::kTuple) && arguments[2]->is(Kind::kDict);
  if (!is_new) return nullptr;
  if (MeaningOf(*arguments[0]) == Meaning::kExecutes) return Unsafe(*arguments[0]);
  return builder_.Record(arguments[0], arguments[1]->items(), arguments[2]);
}

}  // namespace ckptd::pickle

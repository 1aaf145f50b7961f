// What a pickle describes: plain values, and of everything else an inert record of what was to be
// built. Nothing here imports, calls or builds what a file names.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_VALUE_H_
#define CKPTD_COMMON_SOURCE_PICKLE_VALUE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckptd::pickle {

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,       // fits 64 bits, with sign
  kBigInt,    // `text` has its decimal digits
  kFloat,
  kComplex,
  kText,      // UTF-8; what was not is escaped as Python's "backslashreplace" does
  kBytes,
  kList,
  kTuple,     // also torch.Size
  kSet,       // also frozenset
  kDict,      // also OrderedDict; its attributes, such as _metadata, in `state`
  kSymbol,    // a class or a function by name: text is "module.Name", as Python 3 spells it
  kRecord,    // what calling `callee` with `items` was to give
  kPersistent,  // an object outside the pickle: items[0] is its id
};

// A node of a graph that may share nodes and hold itself: whoever walks it counts steps and depth.
// Owned by its Document; the pointers are never null where their kind has them.
struct Value {
  Kind kind = Kind::kNone;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  double imaginary = 0;
  std::string text;
  // Elements of a list, tuple or set; arguments of a record.
  std::vector<const Value*> items;
  // Of a dict in the order of the file, a later value of a key in the place of the earlier one; of
  // a record what SETITEMS put into it.
  std::vector<std::pair<const Value*, const Value*>> entries;
  // Of a record what APPENDS and ADDITEMS put into it.
  std::vector<const Value*> appended;
  // Of a record the symbol, or the record, that was to be called; else nullptr.
  const Value* callee = nullptr;
  // What BUILD gave to a record, dict, list or set: mostly a dict of attributes; else nullptr.
  const Value* state = nullptr;
  // Of a record: arguments by keyword (NEWOBJ_EX), a dict; else nullptr.
  const Value* keywords = nullptr;

  bool is(Kind is) const { return kind == is; }
  bool IsText(std::string_view is) const { return kind == Kind::kText && text == is; }
  // Whether it is the symbol of that name.
  bool IsSymbol(std::string_view name) const { return kind == Kind::kSymbol && text == name; }
  // Whether it is a record of a call of that symbol.
  bool Calls(std::string_view name) const {
    return kind == Kind::kRecord && callee != nullptr && callee->IsSymbol(name);
  }
  // "module.Name" of a record's class, of a class within records too; "" of other kinds.
  std::string_view ClassName() const;
  // The value of a text key of a dict, or of what SETITEMS put into a record; nullptr: none.
  const Value* Get(std::string_view key) const;
  // An attribute that BUILD set, from a dict or from a pair of dicts (slots); nullptr: none.
  const Value* Attribute(std::string_view name) const;
};

// Owns the values of one pickle, of which root is what it stands for. Values stay where they are.
struct Document {
  std::deque<Value> values;
  const Value* root = nullptr;
  int protocol = 0;
};

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_VALUE_H_

// Values that a pickle describes: plain ones, and inert records of everything else that was to be
// built. Nothing here imports, calls or builds what a file names.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_VALUE_H_
#define CKPTD_COMMON_SOURCE_PICKLE_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <vector>

namespace ckptd::pickle {

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,     // fits 64 bits, with sign
  kBigInt,  // text() has its decimal digits
  kFloat,
  kComplex,
  kText,   // UTF-8; half a surrogate pair as Python's "backslashreplace" escapes it: \ud800
  kBytes,  // also bytearray, and what Python 2 called a text and is not UTF-8
  kList,
  kTuple,       // also torch.Size
  kSet,         // also frozenset
  kDict,        // also OrderedDict; its attributes, such as _metadata, in state()
  kSymbol,      // a class or a function by name: text() is "module.Name", as Python 3 spells it
  kRecord,      // what calling callee() with items() was to give
  kPersistent,  // an object outside the pickle: items()[0] is its id
};

class Value;
using Items = std::span<const Value* const>;
struct Entry {
  const Value* key = nullptr;
  const Value* value = nullptr;
};
using Entries = std::span<const Entry>;

// A node of a graph that may share nodes and hold itself: whoever walks it counts steps and depth.
// Owned by its Document, as all that it gives. What a kind does not have is empty, 0 or nullptr;
// pointers in Items and Entries are never null. 24 bytes, since files hold millions.
class Value {
 public:
  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }

  bool boolean() const { return is(Kind::kBool) && a_.integer != 0; }
  // The value of an integer; a bool is 0 or 1.
  int64_t integer() const { return is(Kind::kInt) || is(Kind::kBool) ? a_.integer : 0; }
  // The value of a float, or the two parts of a complex number.
  double real() const { return is(Kind::kFloat) || is(Kind::kComplex) ? a_.real : 0; }
  double imaginary() const { return is(Kind::kComplex) ? b_.imaginary : 0; }

  // The bytes of a text, of a kBytes or of a symbol, or the digits of a kBigInt.
  std::string_view text() const { return HasText() ? std::string_view(a_.text, size_) : ""; }
  bool IsText(std::string_view text) const { return is(Kind::kText) && this->text() == text; }
  // Whether it is the symbol of that name.
  bool IsSymbol(std::string_view name) const { return is(Kind::kSymbol) && text() == name; }

  // Elements of a list, tuple or set; arguments of a record; the id of a kPersistent.
  Items items() const { return HasItems() ? Items(a_.items, size_) : Items(); }
  // Entries of a dict in the order of the file, a later value of a key in the place of the earlier
  // one. Keys are equal that are numbers, texts or bytes and equal in Python, or the same object. A
  // record has the entries that SETITEMS put into it.
  Entries entries() const;
  // Elements that APPENDS and ADDITEMS put into a record.
  Items appended() const;
  // The symbol, or the record, that a record was to call. An object that pickles of protocol 0 and
  // 1 build by copyreg (_reconstructor, __newobj__) is a record of its class.
  const Value* callee() const;
  // The state that BUILD gave last to a record, dict, list or set: mostly a dict of attributes.
  const Value* state() const;
  // Arguments of a record by keyword (NEWOBJ_EX): a dict.
  const Value* keywords() const;

  // Whether it is a record of a call of that symbol.
  bool Calls(std::string_view name) const { return is(Kind::kRecord) && callee()->IsSymbol(name); }
  // "module.Name" of what a record calls, of a record that is called what that calls; "" of other
  // kinds.
  std::string_view ClassName() const;
  // The value of a text key of a dict, or of what SETITEMS put into a record; nullptr: none.
  // Linear.
  const Value* Get(std::string_view key) const;
  // An attribute that BUILD set, from a dict or from a pair of dicts (slots); nullptr: none.
  // Linear.
  const Value* Attribute(std::string_view name) const;

 private:
  friend class Builder;

  // The parts of a record that has more than a callee and arguments; few do.
  struct More {
    const Value* callee = nullptr;
    const Value* state = nullptr;
    const Value* keywords = nullptr;
    Value* entries = nullptr;   // a dict
    Value* appended = nullptr;  // a list
  };

  bool HasText() const {
    return is(Kind::kText) || is(Kind::kBytes) || is(Kind::kSymbol) || is(Kind::kBigInt);
  }
  bool HasItems() const {
    return is(Kind::kTuple) || is(Kind::kRecord) || is(Kind::kList) || is(Kind::kSet) ||
           is(Kind::kPersistent);
  }
  Kind kind_ = Kind::kNone;
  bool has_more_ = false;  // a record
  uint8_t room_log2_ = 0;  // of a list, set or dict that grew: it has room for so many
  uint8_t meaning_ = 0;    // of a symbol: what the interpreter knows it as
  uint32_t size_ = 0;      // of text, items or entries
  union {
    int64_t integer = 0;
    double real;
    const char* text;
    const Value** items;
    Entry* entries;
  } a_;
  union {
    double imaginary = 0;
    const Value* state;   // of a list, set or dict
    const Value* callee;  // of a record
    More* more;           // of a record that has more
    uint64_t hash;        // of a text or bytes that is a key; 0: not known yet
  } b_;
};

// Memory for values, which stay where they are until it ends. Movable.
class Arena {
 public:
  // Not initialised, aligned for pointers.
  void* Allocate(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > left_) return AllocateBlock(bytes);
    return Cut(bytes);
  }
  // The size of all blocks.
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = alignof(void*);
  struct Free {
    std::align_val_t alignment;
    void operator()(std::byte* block) const { ::operator delete(block, alignment); }
  };

  void* AllocateBlock(size_t bytes);
  void* Cut(size_t bytes) {
    void* const out = at_;
    at_ += bytes;
    left_ -= bytes;
    return out;
  }

  std::vector<std::unique_ptr<std::byte[], Free>> blocks_;
  std::byte* at_ = nullptr;
  size_t left_ = 0;
  size_t bytes_ = 0;
};

// Owns the values of one pickle, of which root is what it stands for.
struct Document {
  Arena arena;
  const Value* root = nullptr;
  // All objects outside of it that were asked for, in this order, also those that are in no value.
  std::vector<const Value*> persistent;
  int protocol = 0;
};

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_VALUE_H_

// Makes the values of a pickle and fills them. Counts what they cost.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_BUILDER_H_
#define CKPTD_COMMON_SOURCE_PICKLE_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/source/pickle/value.h"

namespace ckptd::pickle {

// Values that are in containers already are const; the builder alone changes them. Texts and
// elements are copied. Not thread-safe.
class Builder {
 public:
  // So many steps of CountRepeated are allowed.
  explicit Builder(size_t most_repeated) : most_repeated_(most_repeated) {}

  static const Value* None();
  static const Value* Bool(bool value);
  static const Value* EmptyTuple();
  const Value* Int(int64_t value);
  const Value* BigInt(std::string_view digits) { return NewText(Kind::kBigInt, digits); }
  const Value* Float(double value);
  const Value* Complex(double real, double imaginary);
  const Value* Text(std::string_view utf8) { return NewText(Kind::kText, utf8); }
  const Value* Bytes(std::string_view bytes) { return NewText(Kind::kBytes, bytes); }
  const Value* Symbol(std::string_view name, uint8_t meaning);
  const Value* List(Items items) { return NewItems(Kind::kList, items); }
  const Value* Set(Items items) { return NewItems(Kind::kSet, items); }
  const Value* Tuple(Items items);
  const Value* Dict() { return New(Kind::kDict); }
  const Value* Persistent(const Value* id);
  // `items` must be those of a tuple, or of this call alone: they are kept.
  const Value* Record(const Value* callee, Items items, const Value* keywords);
  // Elements for Record that stay.
  Items Keep(Items items);

  static uint8_t MeaningOf(const Value& symbol) { return symbol.meaning_; }

  // To a list, to a set, or to what a record appends.
  void Append(const Value& container, Items items);
  // Key, value, key, value ... into a dict, or into the entries of a record.
  void Put(const Value& container, Items keys_and_values);
  void SetState(const Value& container, const Value* state);

  // Called before elements or bytes of a value are copied or compared, which a short pickle could
  // have done again and again with a long one. Errors: InvalidArgument SOURCE_INVALID.
  absl::Status CountRepeated(size_t steps);

  // Keeps of each key of a dict the last value. Errors: those of CountRepeated.
  absl::Status MergeEqualKeys();

  size_t values() const { return values_; }
  size_t bytes() const {
    return arena_.bytes() + (filled_.capacity() + persistent_.capacity()) * sizeof(Value*);
  }
  Arena TakeArena() { return std::move(arena_); }
  // What Persistent made.
  std::vector<const Value*> TakePersistent() { return std::move(persistent_); }

 private:
  Value* New(Kind kind);
  Value::More& MoreOf(Value& record);
  const Value* NewText(Kind kind, std::string_view text);
  const Value* NewItems(Kind kind, Items items);
  // Room for `more` behind the elements of a container; counts them as its own.
  template <typename Element>
  Element* Extend(Value& container, Element*& elements, size_t more);

  // Hashes keys that were read a moment ago: later they lie far away.
  static void HashKeys(Entries entries);

  class KeyTable;
  struct Constants;

  Arena arena_;
  std::vector<Value*> filled_;  // dicts that have entries
  std::vector<const Value*> persistent_;
  size_t values_ = 0;
  size_t most_repeated_ = 0;
  size_t repeated_ = 0;
};

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_BUILDER_H_

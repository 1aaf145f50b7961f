// A key that a pickle puts into a dict twice: the last value counts, in the place of the first.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/source/pickle/builder.h"

namespace ckptd::pickle {
namespace {

// Dicts of so few entries are compared without a table.
constexpr size_t kFew = 8;
// So many keys are fetched from memory at once.
constexpr size_t kAhead = 16;

constexpr bool IsNumber(Kind kind) {
  return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat ||
         kind == Kind::kComplex;
}

bool IsReal(const Value& number) { return !number.is(Kind::kComplex) || number.imaginary() == 0; }

// A float or a complex number that is a whole number is the key that this number is.
std::optional<int64_t> WholeNumber(const Value& number) {
  if (number.is(Kind::kBool) || number.is(Kind::kInt)) return number.integer();
  if (!IsReal(number)) return std::nullopt;
  const double real = number.real();
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (!(real >= -kEnd && real < kEnd) || std::trunc(real) != real) return std::nullopt;
  return static_cast<int64_t>(real);
}

bool SameNumber(const Value& a, const Value& b) {
  const std::optional<int64_t> whole = WholeNumber(a);
  if (whole.has_value()) return whole == WholeNumber(b);
  // An integer that is no WholeNumber is none.
  return a.real() == b.real() && a.imaginary() == b.imaginary() && !WholeNumber(b).has_value();
}

uint64_t Mixed(uint64_t number) { return __builtin_bswap64((number + 1) * 0x9e3779b97f4a7c15); }

}  // namespace

class Builder::KeyTable {
 public:
  explicit KeyTable(Builder& builder) : builder_(builder) {}

  // The entry before `count` that has this key, or `count`.
  absl::StatusOr<size_t> Find(const Entry* entries, size_t count, const Value& key) {
    if (slots_.empty()) return FindAmongFew(entries, count, key);
    const uint64_t hash = HashOf(key);
    size_t at = hash & (slots_.size() - 1);
    for (; slots_[at].next != 0; at = (at + 1) & (slots_.size() - 1)) {
      const Slot slot = slots_[at];
      if (slot.hash == static_cast<uint32_t>(hash >> 32)) {
        CKPTD_ASSIGN_OR_RETURN(const bool same, Same(*entries[slot.next - 1].key, key));
        if (same) return slot.next - 1;
      }
      // Keys can be made to fall into one slot.
      CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(1));
    }
    slots_[at] = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(count + 1)};
    return count;
  }

  // Forgets all keys; so many will come.
  void Reset(size_t count) {
    slots_.clear();
    if (count > kFew) slots_.resize(std::bit_ceil(count * 2));
  }

  static uint64_t HashOf(const Value& key) {
    if (IsText(key)) {
      auto& hash = const_cast<Value&>(key).b_.hash;
      if (hash == 0) hash = Xxh3(key.text()) | 1;
      return hash;
    }
    if (!IsNumber(key.kind())) return Mixed(std::bit_cast<uintptr_t>(&key));
    const std::optional<int64_t> whole = WholeNumber(key);
    return Mixed(whole.has_value() ? static_cast<uint64_t>(*whole)
                                   : std::bit_cast<uint64_t>(key.real()));
  }

 private:
  struct Slot {
    uint32_t hash = 0;  // its upper half
    uint32_t next = 0;  // behind an entry's place; 0: free
  };

  static bool IsText(const Value& key) { return key.HasText() && !key.is(Kind::kSymbol); }

  absl::StatusOr<size_t> FindAmongFew(const Entry* entries, size_t count, const Value& key) {
    for (size_t at = 0; at < count; ++at) {
      CKPTD_ASSIGN_OR_RETURN(const bool same, Same(*entries[at].key, key));
      if (same) return at;
    }
    return count;
  }

  absl::StatusOr<bool> Same(const Value& a, const Value& b) {
    if (&a == &b) return true;
    if (IsNumber(a.kind()) && IsNumber(b.kind())) return SameNumber(a, b);
    if (a.kind() != b.kind() || !IsText(a) || a.size_ != b.size_ || HashOf(a) != HashOf(b)) {
      return false;
    }
    CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(a.size_));
    return a.text() == b.text();
  }

  Builder& builder_;
  std::vector<Slot> slots_;
};

void Builder::HashKeys(Entries entries) {
  if (entries.size() <= kFew) return;
  for (const Entry& entry : entries) KeyTable::HashOf(*entry.key);
}

absl::Status Builder::MergeEqualKeys() {
  KeyTable table(*this);
  for (Value* dict : filled_) {
    table.Reset(dict->size_);
    Entry* const entries = dict->a_.entries;
    size_t kept = 0;
    for (size_t i = 0; i < dict->size_; ++i) {
      if (i + kAhead < dict->size_) __builtin_prefetch(entries[i + kAhead].key);
      const Entry entry = entries[i];
      CKPTD_ASSIGN_OR_RETURN(const size_t at, table.Find(entries, kept, *entry.key));
      if (at == kept) entries[kept++].key = entry.key;
      entries[at].value = entry.value;
    }
    dict->size_ = static_cast<uint32_t>(kept);
  }
  return absl::OkStatus();
}

}  // namespace ckptd::pickle

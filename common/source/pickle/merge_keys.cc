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

constexpr bool IsNumber(Kind kind) {
  return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat;
}

// A float that is a whole number is the key that this number is.
std::optional<int64_t> WholeNumber(const Value& number) {
  if (!number.is(Kind::kFloat)) return number.integer();
  const double real = number.real();
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (!(real >= -kEnd && real < kEnd) || std::trunc(real) != real) return std::nullopt;
  return static_cast<int64_t>(real);
}

bool SameNumber(const Value& a, const Value& b) {
  const std::optional<int64_t> whole = WholeNumber(a);
  if (whole.has_value()) return whole == WholeNumber(b);
  return a.is(Kind::kFloat) && b.is(Kind::kFloat) && a.real() == b.real();
}

uint64_t Mixed(uint64_t number) { return (number + 1) * 0x9e3779b97f4a7c15; }

}  // namespace

class Builder::KeyTable {
 public:
  explicit KeyTable(Builder& builder) : builder_(builder) {}

  // The entry before `count` that has this key, or `count`.
  absl::StatusOr<size_t> Find(const Entry* entries, size_t count, const Value& key) {
    if (slots_.empty()) return FindAmongFew(entries, count, key);
    size_t slot = HashOf(key) & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
      const size_t at = slots_[slot] - 1;
      CKPTD_ASSIGN_OR_RETURN(const bool same, Same(*entries[at].key, key));
      if (same) return at;
      // Keys can be made to fall into one slot.
      CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(1));
    }
    slots_[slot] = static_cast<uint32_t>(count + 1);
    return count;
  }

  // Forgets all keys; so many will come.
  void Reset(size_t count) {
    slots_.clear();
    if (count > kFew) slots_.resize(std::bit_ceil(count * 2), 0);
  }

 private:
  absl::StatusOr<size_t> FindAmongFew(const Entry* entries, size_t count, const Value& key) {
    for (size_t at = 0; at < count; ++at) {
      CKPTD_ASSIGN_OR_RETURN(const bool same, Same(*entries[at].key, key));
      if (same) return at;
    }
    return count;
  }

  static uint64_t HashOf(const Value& key) {
    if (key.HasText() && !key.is(Kind::kSymbol)) {
      auto& hash = const_cast<Value&>(key).b_.hash;
      if (hash == 0) hash = Xxh3(key.text()) | 1;
      return hash >> 1;
    }
    if (IsNumber(key.kind())) {
      const std::optional<int64_t> whole = WholeNumber(key);
      if (whole.has_value()) return Mixed(static_cast<uint64_t>(*whole)) >> 17;
      return Mixed(std::bit_cast<uint64_t>(key.real())) >> 17;
    }
    return Mixed(std::bit_cast<uintptr_t>(&key)) >> 17;
  }

  absl::StatusOr<bool> Same(const Value& a, const Value& b) {
    if (&a == &b) return true;
    if (IsNumber(a.kind()) && IsNumber(b.kind())) return SameNumber(a, b);
    if (a.kind() != b.kind() || !a.HasText() || a.is(Kind::kSymbol) || a.size_ != b.size_) {
      return false;
    }
    if (HashOf(a) != HashOf(b)) return false;
    CKPTD_RETURN_IF_ERROR(builder_.CountRepeated(a.size_));
    return a.text() == b.text();
  }

  Builder& builder_;
  std::vector<uint32_t> slots_;  // 0: free; else an entry's place and 1
};

absl::Status Builder::MergeEqualKeys() {
  KeyTable table(*this);
  for (Value* dict : filled_) {
    table.Reset(dict->size_);
    Entry* const entries = dict->a_.entries;
    size_t kept = 0;
    for (size_t i = 0; i < dict->size_; ++i) {
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

#include "common/source/pickle/builder.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::pickle {
namespace {

constexpr size_t kSmallInts = 256;

// In place of arrays of no elements, which nobody reads.
template <typename Element>
Element* CopyOf(Arena& arena, std::span<const Element> elements) {
  if (elements.empty()) return nullptr;
  auto* const copy = static_cast<Element*>(arena.Allocate(elements.size_bytes()));
  std::memcpy(copy, elements.data(), elements.size_bytes());
  return copy;
}

}  // namespace

// Not in an arena, as each of them is in all documents: they never change.
struct Builder::Constants {
  Constants() {
    boolean[0].kind_ = boolean[1].kind_ = Kind::kBool;
    boolean[1].a_.integer = 1;
    tuple.kind_ = Kind::kTuple;
    tuple.a_.items = nullptr;
    for (size_t i = 0; i < kSmallInts; ++i) {
      integers[i].kind_ = Kind::kInt;
      integers[i].a_.integer = static_cast<int64_t>(i);
    }
  }

  static const Constants& Get() {
    static const Constants constants;
    return constants;
  }

  Value none;
  std::array<Value, 2> boolean;
  Value tuple;
  std::array<Value, kSmallInts> integers;
};

const Value* Builder::None() { return &Constants::Get().none; }

const Value* Builder::Bool(bool value) { return &Constants::Get().boolean[value ? 1 : 0]; }

const Value* Builder::EmptyTuple() { return &Constants::Get().tuple; }

Value* Builder::New(Kind kind) {
  ++values_;
  Value* const value = new (arena_.Allocate(sizeof(Value))) Value;
  value->kind_ = kind;
  return value;
}

const Value* Builder::Int(int64_t value) {
  if (value >= 0 && value < static_cast<int64_t>(kSmallInts)) {
    return &Constants::Get().integers[static_cast<size_t>(value)];
  }
  Value* const out = New(Kind::kInt);
  out->a_.integer = value;
  return out;
}

const Value* Builder::Float(double value) {
  Value* const out = New(Kind::kFloat);
  out->a_.real = value;
  return out;
}

const Value* Builder::Complex(double real, double imaginary) {
  Value* const out = New(Kind::kComplex);
  out->a_.real = real;
  out->b_.imaginary = imaginary;
  return out;
}

const Value* Builder::NewText(Kind kind, std::string_view text) {
  Value* const out = New(kind);
  out->size_ = static_cast<uint32_t>(text.size());
  out->a_.text = CopyOf(arena_, std::span<const char>(text));
  out->b_.hash = 0;
  return out;
}

const Value* Builder::Symbol(std::string_view name, uint8_t meaning) {
  auto* const out = const_cast<Value*>(NewText(Kind::kSymbol, name));
  out->meaning_ = meaning;
  return out;
}

Items Builder::Keep(Items items) { return {CopyOf(arena_, items), items.size()}; }

const Value* Builder::NewItems(Kind kind, Items items) {
  Value* const out = New(kind);
  out->size_ = static_cast<uint32_t>(items.size());
  out->a_.items = CopyOf(arena_, items);
  return out;
}

const Value* Builder::Tuple(Items items) {
  return items.empty() ? EmptyTuple() : NewItems(Kind::kTuple, items);
}

const Value* Builder::Persistent(const Value* id) {
  return persistent_.emplace_back(NewItems(Kind::kPersistent, Items(&id, 1)));
}

const Value* Builder::Record(const Value* callee, Items items, const Value* keywords) {
  Value* const out = New(Kind::kRecord);
  out->size_ = static_cast<uint32_t>(items.size());
  out->a_.items = const_cast<const Value**>(items.data());
  out->b_.callee = callee;
  if (keywords != nullptr) MoreOf(*out).keywords = keywords;
  return out;
}

Value::More& Builder::MoreOf(Value& record) {
  if (!record.has_more_) {
    auto* const more = new (arena_.Allocate(sizeof(Value::More))) Value::More;
    more->callee = record.b_.callee;
    record.b_.more = more;
    record.has_more_ = true;
  }
  return *record.b_.more;
}

template <typename Element>
Element* Builder::Extend(Value& container, Element*& elements, size_t more) {
  const size_t size = container.size_;
  const size_t room = container.room_log2_ == 0 ? size : size_t{1} << container.room_log2_;
  if (size + more > room) {
    // Most containers are filled at once; those that grow again double.
    const size_t next = size == 0 ? more : std::bit_ceil(size + more);
    auto* const moved = static_cast<Element*>(arena_.Allocate(next * sizeof(Element)));
    if (size != 0) {
      std::memcpy(moved, elements, size * sizeof(Element));
      container.room_log2_ = static_cast<uint8_t>(std::countr_zero(next));
    }
    elements = moved;
  }
  container.size_ = static_cast<uint32_t>(size + more);
  return elements + size;
}

void Builder::Append(const Value& container, Items items) {
  if (items.empty()) return;
  auto* into = const_cast<Value*>(&container);
  if (into->is(Kind::kRecord)) {
    Value*& appended = MoreOf(*into).appended;
    if (appended == nullptr) appended = const_cast<Value*>(List({}));
    into = appended;
  }
  std::memcpy(Extend(*into, into->a_.items, items.size()), items.data(), items.size_bytes());
}

void Builder::Put(const Value& container, Items keys_and_values) {
  if (keys_and_values.empty()) return;
  auto* into = const_cast<Value*>(&container);
  if (into->is(Kind::kRecord)) {
    Value*& entries = MoreOf(*into).entries;
    if (entries == nullptr) entries = New(Kind::kDict);
    into = entries;
  }
  if (into->size_ == 0) filled_.push_back(into);
  Entry* const entries = Extend(*into, into->a_.entries, keys_and_values.size() / 2);
  const size_t count = keys_and_values.size() / 2;
  for (size_t i = 0; i < count; ++i) {
    entries[i] = {keys_and_values[2 * i], keys_and_values[2 * i + 1]};
  }
  HashKeys(Entries(entries, count));
}

void Builder::SetState(const Value& container, const Value* state) {
  auto& into = const_cast<Value&>(container);
  (into.is(Kind::kRecord) ? MoreOf(into).state : into.b_.state) = state;
}

absl::Status Builder::CountRepeated(size_t steps) {
  repeated_ += steps;
  if (repeated_ <= most_repeated_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("its pickle has readers copy or compare the same values again and "
                               "again, which no checkpoint does (more than {} elements of them); "
                               "find out who wrote the file",
                               most_repeated_));
}

}  // namespace ckptd::pickle

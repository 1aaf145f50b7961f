#include "common/source/pickle/value.h"

#include <algorithm>

namespace ckptd::pickle {
namespace {

// A small pickle has one small block; of a large one few are half empty.
constexpr size_t kFirstBlockBytes = 2 * 1024;
constexpr size_t kLargestBlockBytes = size_t{1} << 20;

const Value* Find(Entries entries, std::string_view key) {
  for (const Entry& entry : entries) {
    if (entry.key->IsText(key)) return entry.value;
  }
  return nullptr;
}

}  // namespace

Entries Value::entries() const {
  if (is(Kind::kDict)) return Entries(a_.entries, size_);
  return is(Kind::kRecord) && b_.more->entries != nullptr ? b_.more->entries->entries() : Entries();
}

Items Value::appended() const {
  return is(Kind::kRecord) && b_.more->appended != nullptr ? b_.more->appended->items() : Items();
}

const Value* Value::callee() const { return is(Kind::kRecord) ? b_.more->callee : nullptr; }

const Value* Value::state() const {
  if (is(Kind::kRecord)) return b_.more->state;
  return is(Kind::kDict) || is(Kind::kList) || is(Kind::kSet) ? b_.state : nullptr;
}

const Value* Value::keywords() const { return is(Kind::kRecord) ? b_.more->keywords : nullptr; }

std::string_view Value::ClassName() const {
  const Value* called = callee();
  while (called != nullptr && called->is(Kind::kRecord)) called = called->callee();
  return called == nullptr ? std::string_view() : called->text();
}

const Value* Value::Get(std::string_view key) const { return Find(entries(), key); }

const Value* Value::Attribute(std::string_view name) const {
  const Value* const state = this->state();
  if (state == nullptr) return nullptr;
  if (state->is(Kind::kDict)) return state->Get(name);
  if (!state->is(Kind::kTuple) || state->items().size() != 2) return nullptr;
  for (const Value* part : state->items()) {
    const Value* const found = part->is(Kind::kDict) ? part->Get(name) : nullptr;
    if (found != nullptr) return found;
  }
  return nullptr;
}

void* Arena::Allocate(size_t bytes) {
  bytes = (bytes + alignof(Value) - 1) / alignof(Value) * alignof(Value);
  if (bytes > left_) {
    const size_t next = std::clamp(bytes_, kFirstBlockBytes, kLargestBlockBytes);
    const size_t size = std::max(bytes, next);
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(size));
    bytes_ += size;
    // What is longer than a block has one of its own; the other one is filled further.
    if (size > next) return blocks_.back().get();
    at_ = blocks_.back().get();
    left_ = size;
  }
  void* const out = at_;
  at_ += bytes;
  left_ -= bytes;
  return out;
}

}  // namespace ckptd::pickle

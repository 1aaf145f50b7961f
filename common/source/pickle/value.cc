#include "common/source/pickle/value.h"

#include <sys/mman.h>

#include <algorithm>

namespace ckptd::pickle {
namespace {

// A small pickle has one small block; of a large one few are half empty.
constexpr size_t kFirstBlockBytes = 2 * 1024;
constexpr size_t kLargestBlockBytes = size_t{4} << 20;
constexpr size_t kHugePageBytes = size_t{2} << 20;

const Value* Find(Entries entries, std::string_view key) {
  for (const Entry& entry : entries) {
    if (entry.key->IsText(key)) return entry.value;
  }
  return nullptr;
}

}  // namespace

Entries Value::entries() const {
  if (is(Kind::kDict)) return Entries(a_.entries, size_);
  return has_more_ && b_.more->entries != nullptr ? b_.more->entries->entries() : Entries();
}

Items Value::appended() const {
  return has_more_ && b_.more->appended != nullptr ? b_.more->appended->items() : Items();
}

const Value* Value::callee() const {
  if (!is(Kind::kRecord)) return nullptr;
  return has_more_ ? b_.more->callee : b_.callee;
}

const Value* Value::state() const {
  if (has_more_) return b_.more->state;
  return is(Kind::kDict) || is(Kind::kList) || is(Kind::kSet) ? b_.state : nullptr;
}

const Value* Value::keywords() const { return has_more_ ? b_.more->keywords : nullptr; }

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

void* Arena::AllocateBlock(size_t bytes) {
  const size_t next = std::clamp(bytes_, kFirstBlockBytes, kLargestBlockBytes);
  size_t size = std::max(bytes, next);
  const bool is_huge = size >= kHugePageBytes;
  if (is_huge) size = (size + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const auto alignment = static_cast<std::align_val_t>(is_huge ? kHugePageBytes : kAlignment);
  auto* const block = static_cast<std::byte*>(::operator new(size, alignment));
  // Small pages would cost a third of the time that reading takes; a refusal does not matter.
  if (is_huge) ::madvise(block, size, MADV_HUGEPAGE);
  blocks_.emplace_back(block, Free{alignment});
  bytes_ += size;
  // A request longer than a usual block has one of its own; the other one is filled further.
  if (bytes > next) return block;
  at_ = block;
  left_ = size;
  return Cut(bytes);
}

}  // namespace ckptd::pickle

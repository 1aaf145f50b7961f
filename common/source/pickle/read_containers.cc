// Opcodes that make containers and fill them.
#include <fmt/format.h>

#include "common/base/status.h"
#include "common/source/pickle/interpreter.h"

namespace ckptd::pickle {

absl::Status Interpreter::EmptyTuple() {
  Push(Builder::EmptyTuple());
  return absl::OkStatus();
}

template <size_t kSize>
absl::Status Interpreter::TupleOf() {
  CKPTD_RETURN_IF_ERROR(Need(kSize));
  const Value* const tuple = builder_.Tuple(Items(stack_).last(kSize));
  stack_.resize(stack_.size() - kSize);
  Push(tuple);
  return absl::OkStatus();
}

absl::Status Interpreter::Tuple() {
  Items items;
  CKPTD_RETURN_IF_ERROR(Group(items));
  const Value* const tuple = builder_.Tuple(items);
  EndGroup();
  Push(tuple);
  return absl::OkStatus();
}

absl::Status Interpreter::EmptyList() {
  Push(builder_.List({}));
  return absl::OkStatus();
}

absl::Status Interpreter::List() {
  Items items;
  CKPTD_RETURN_IF_ERROR(Group(items));
  const Value* const list = builder_.List(items);
  EndGroup();
  Push(list);
  return absl::OkStatus();
}

absl::Status Interpreter::AppendTo(const Value& container, Items items, Kind kind) {
  if (!container.is(kind) && !container.is(Kind::kRecord)) {
    return Damaged("its opcode adds elements to what takes none");
  }
  builder_.Append(container, items);
  return absl::OkStatus();
}

absl::Status Interpreter::Append() {
  CKPTD_RETURN_IF_ERROR(Need(2));
  const Value* const item = PopTop();
  return AppendTo(Top(), Items(&item, 1), Kind::kList);
}

absl::Status Interpreter::Appends() { return AppendGroup(Kind::kList); }

absl::Status Interpreter::AddItems() { return AppendGroup(Kind::kSet); }

absl::Status Interpreter::AppendGroup(Kind kind) {
  const Value* container = nullptr;
  Items items;
  CKPTD_RETURN_IF_ERROR(GroupFor(container, items));
  CKPTD_RETURN_IF_ERROR(AppendTo(*container, items, kind));
  EndGroup();
  return absl::OkStatus();
}

absl::Status Interpreter::GroupFor(const Value*& container, Items& items) const {
  CKPTD_RETURN_IF_ERROR(Group(items));
  const size_t below = marks_.size() > 1 ? marks_[marks_.size() - 2] : 0;
  if (floor_ == below) return Damaged("its opcode fills nothing");
  container = stack_[floor_ - 1];
  return absl::OkStatus();
}

absl::Status Interpreter::EmptyDict() {
  Push(builder_.Dict());
  return absl::OkStatus();
}

absl::Status Interpreter::Dict() {
  Items items;
  CKPTD_RETURN_IF_ERROR(Group(items));
  const Value* const dict = builder_.Dict();
  CKPTD_RETURN_IF_ERROR(PutInto(*dict, items));
  EndGroup();
  Push(dict);
  return absl::OkStatus();
}

absl::Status Interpreter::PutInto(const Value& container, Items items) {
  if (!container.is(Kind::kDict) && !container.is(Kind::kRecord)) {
    return Damaged("its opcode puts keys into what has none");
  }
  if (items.size() % 2 != 0) return Damaged("a key has no value");
  builder_.Put(container, items);
  return absl::OkStatus();
}

absl::Status Interpreter::SetItem() {
  CKPTD_RETURN_IF_ERROR(Need(3));
  CKPTD_RETURN_IF_ERROR(PutInto(*stack_[stack_.size() - 3], Items(stack_).last(2)));
  stack_.resize(stack_.size() - 2);
  return absl::OkStatus();
}

absl::Status Interpreter::SetItems() {
  const Value* container = nullptr;
  Items items;
  CKPTD_RETURN_IF_ERROR(GroupFor(container, items));
  CKPTD_RETURN_IF_ERROR(PutInto(*container, items));
  EndGroup();
  return absl::OkStatus();
}

absl::Status Interpreter::EmptySet() {
  Push(builder_.Set({}));
  return absl::OkStatus();
}

absl::Status Interpreter::FrozenSet() {
  Items items;
  CKPTD_RETURN_IF_ERROR(Group(items));
  const Value* const set = builder_.Set(items);
  EndGroup();
  Push(set);
  return absl::OkStatus();
}

template absl::Status Interpreter::TupleOf<1>();
template absl::Status Interpreter::TupleOf<2>();
template absl::Status Interpreter::TupleOf<3>();

}  // namespace ckptd::pickle

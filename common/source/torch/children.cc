#include "common/source/torch/children.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/source/torch/storage_id.h"
#include "common/source/torch/text_of.h"

namespace ckptd::torch {
namespace {

using pickle::Entry;
using pickle::Items;
using pickle::Kind;
using pickle::Value;

void AddItems(Items items, std::vector<Child>& out) {
  for (size_t i = 0; i < items.size(); ++i) out.push_back({std::to_string(i), items[i]});
}

void AddEntries(const Value* dict, std::vector<Child>& out) {
  if (dict == nullptr) return;
  for (const Entry& entry : dict->entries()) out.push_back({KeyText(*entry.key), entry.value});
}

// Adds the state that BUILD gave: a dict of attributes, such a dict and one of slots, or anything.
void AddState(const Value* state, std::vector<Child>& out) {
  if (state == nullptr) return;
  if (state->is(Kind::kDict)) return AddEntries(state, out);
  const Items pair = state->is(Kind::kTuple) ? state->items() : Items();
  if (pair.size() == 2 && pair[1]->is(Kind::kDict) &&
      (pair[0]->is(Kind::kDict) || pair[0]->is(Kind::kNone))) {
    AddEntries(pair[0], out);
    return AddEntries(pair[1], out);
  }
  out.push_back({"state", state});
}

// (function, class, its arguments, attributes): a subclass of Tensor made by a function.
const Value* AttributesOfSubclass(const Value& record) {
  const bool is_subclass =
      record.Calls("torch._tensor._rebuild_from_type_v2") && record.items().size() == 4;
  return is_subclass ? record.items()[3] : nullptr;
}

bool IsDictOf(const Value* value) { return value != nullptr && value->is(Kind::kDict); }

bool Holds(const Value* names, const Value& name) {
  if (names == nullptr) return false;
  const Items items = names->items();
  return std::any_of(items.begin(), items.end(),
                     [&name](const Value* item) { return item->IsText(name.text()); });
}

bool AddModule(const Value& record, std::vector<Child>& out) {
  const Value* const parameters = record.Attribute("_parameters");
  const Value* const buffers = record.Attribute("_buffers");
  const Value* const modules = record.Attribute("_modules");
  if (!IsDictOf(parameters) || !IsDictOf(buffers) || !IsDictOf(modules)) return false;
  const Value* const left_out = record.Attribute("_non_persistent_buffers_set");
  const auto add = [&out](const Entry& entry, EntryKind kind) {
    if (!entry.value->is(Kind::kNone)) out.push_back({KeyText(*entry.key), entry.value, kind});
  };
  for (const Entry& entry : parameters->entries()) add(entry, EntryKind::kParameter);
  for (const Entry& entry : buffers->entries()) {
    if (!Holds(left_out, *entry.key)) add(entry, EntryKind::kBuffer);
  }
  for (const Entry& entry : modules->entries()) add(entry, EntryKind::kParameter);
  return true;
}

}  // namespace

std::vector<Child> ChildrenOf(const Value& value) {
  std::vector<Child> out;
  if (!value.is(Kind::kRecord)) {
    AddItems(value.items(), out);
    AddEntries(&value, out);
    return out;
  }
  if (AddModule(value, out)) return out;
  if (const Value* const attributes = AttributesOfSubclass(value); attributes != nullptr) {
    AddState(attributes, out);
    return out;
  }
  AddItems(value.items(), out);
  AddEntries(value.keywords(), out);
  AddState(value.state(), out);
  AddEntries(&value, out);
  AddItems(value.appended(), out);
  return out;
}

std::string NameOfRecord(const Value& record) {
  if (AttributesOfSubclass(record) != nullptr && record.items()[1]->is(Kind::kSymbol)) {
    return std::string(record.items()[1]->text());
  }
  return std::string(record.ClassName());
}

std::string NameOfPersistent(const Value& value) {
  const std::optional<StorageId> id = StorageIdOf(value);
  return id.has_value() ? std::string(id->symbol) : "persistent id";
}

}  // namespace ckptd::torch

#include "common/source/torch/children.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "common/source/torch/storage_id.h"
#include "common/source/torch/text_of.h"

namespace ckptd::torch {
namespace {

using pickle::Entry;
using pickle::Items;
using pickle::Kind;
using pickle::Value;

// Takes children until they cost too much.
class Adder {
 public:
  Adder(size_t& budget, std::vector<Child>& out) : budget_(budget), out_(out) {}

  bool fits() const { return fits_; }
  // Whether so much is left; takes it.
  bool Pay(size_t cost) {
    fits_ = fits_ && cost <= budget_;
    if (fits_) budget_ -= cost;
    return fits_;
  }
  bool Add(std::string name, const Value* value, EntryKind kind = EntryKind::kParameter,
           const Value* key = nullptr) {
    if (!Pay(sizeof(Child) + name.size())) return false;
    out_.push_back({std::move(name), value, kind, key});
    return true;
  }

 private:
  size_t& budget_;
  std::vector<Child>& out_;
  bool fits_ = true;
};

void AddItems(Items items, Adder& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (!out.Add(std::to_string(i), items[i])) return;
  }
}

void AddEntries(const Value* dict, Adder& out) {
  if (dict == nullptr) return;
  for (const Entry& entry : dict->entries()) {
    if (!out.Add(KeyText(*entry.key), entry.value, EntryKind::kParameter, entry.key)) return;
  }
}

// Adds the state that BUILD gave: a dict of attributes, such a dict and one of slots, or anything.
void AddState(const Value* state, Adder& out) {
  if (state == nullptr) return;
  if (state->is(Kind::kDict)) return AddEntries(state, out);
  const Items pair = state->is(Kind::kTuple) ? state->items() : Items();
  if (pair.size() == 2 && pair[1]->is(Kind::kDict) &&
      (pair[0]->is(Kind::kDict) || pair[0]->is(Kind::kNone))) {
    AddEntries(pair[0], out);
    return AddEntries(pair[1], out);
  }
  out.Add("state", state);
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

bool AddModule(const Value& record, Adder& out) {
  const Value* const parameters = record.Attribute("_parameters");
  const Value* const buffers = record.Attribute("_buffers");
  const Value* const modules = record.Attribute("_modules");
  if (!IsDictOf(parameters) || !IsDictOf(buffers) || !IsDictOf(modules)) return false;
  const Value* const left_out = record.Attribute("_non_persistent_buffers_set");
  const auto add_all = [&out](const Value& dict, EntryKind kind, const Value* without) {
    const size_t compared = without == nullptr ? 0 : without->items().size();
    for (const Entry& entry : dict.entries()) {
      if (!out.Pay(compared)) return;
      if (entry.value->is(Kind::kNone) || Holds(without, *entry.key)) continue;
      if (!out.Add(KeyText(*entry.key), entry.value, kind)) return;
    }
  };
  add_all(*parameters, EntryKind::kParameter, nullptr);
  add_all(*buffers, EntryKind::kBuffer, left_out);
  add_all(*modules, EntryKind::kParameter, nullptr);
  return true;
}

}  // namespace

bool ChildrenOf(const Value& value, size_t& budget, std::vector<Child>& children) {
  Adder out(budget, children);
  if (!value.is(Kind::kRecord)) {
    AddItems(value.items(), out);
    AddEntries(&value, out);
    return out.fits();
  }
  if (AddModule(value, out)) return out.fits();
  if (const Value* const attributes = AttributesOfSubclass(value); attributes != nullptr) {
    AddState(attributes, out);
    return out.fits();
  }
  AddItems(value.items(), out);
  AddEntries(value.keywords(), out);
  AddState(value.state(), out);
  AddEntries(&value, out);
  AddItems(value.appended(), out);
  return out.fits();
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

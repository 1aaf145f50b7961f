#include "common/source/formats/dcp/part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/escape.h"
#include "common/source/text.h"

namespace ckptd::dcp {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr char kModelPart[] = "model";
constexpr char kOptimizerPart[] = "optimizer";
constexpr char kExtraPart[] = "extra";
constexpr char kAllPart[] = "all";

enum class Role : uint8_t { kNone, kModel, kOptimizer, kExtra };

Role RoleOf(std::string_view group) {
  constexpr auto kModels = std::to_array<std::string_view>(
      {"model", "module", "state_dict", "model_state_dict"});
  constexpr auto kExtras = std::to_array<std::string_view>(
      {"args", "common_state", "dataloader", "extra", "extra_state", "grad_scaler", "lr_scheduler",
       "lr_schedulers", "opt_param_scheduler", "rng", "rng_state", "scaler", "scheduler",
       "train_state", "trainer"});
  const auto has = [group](const auto& names) {
    return std::find(names.begin(), names.end(), group) != names.end();
  };
  if (has(kModels)) return Role::kModel;
  if (group.starts_with("optim") || group == "opt") return Role::kOptimizer;
  // Several optimizers of Megatron-Core.
  if (group.starts_with("chained_")) return Role::kOptimizer;
  return has(kExtras) ? Role::kExtra : Role::kNone;
}

// An entry, and the group that it is of.
struct Grouped {
  std::string_view group;   // empty: of none
  size_t prefix_bytes = 0;  // of its key, up to and with the dot behind the group
  Role role = Role::kNone;
};

std::string_view ElementOf(const Value* path, size_t at) {
  return path != nullptr && path->items().size() > at ? path->items()[at]->text() : "";
}

// A key of the first level that all entries lie below and that says nothing ("app"): as many bytes
// of keys as it takes, with its dot; 0: there is none.
size_t WrapperBytes(std::span<const Stored> stored) {
  std::string_view wrapper;
  for (const Stored& one : stored) {
    const std::string_view first = ElementOf(one.path, 0);
    const bool is_below = one.path != nullptr && one.path->items().size() > 1;
    if (!is_below || first.empty() || RoleOf(first) != Role::kNone) return 0;
    if (!wrapper.empty() && first != wrapper) return 0;
    if (!one.key.starts_with(first) || one.key.substr(first.size()).find('.') != 0) return 0;
    wrapper = first;
  }
  return wrapper.empty() ? 0 : wrapper.size() + 1;
}

Grouped GroupOf(const Stored& stored, size_t wrapper_bytes) {
  Grouped out;
  const std::string_view below = stored.key.substr(wrapper_bytes);
  const size_t level = wrapper_bytes == 0 ? 0 : 1;
  if (stored.path != nullptr) {
    const bool is_last = stored.path->items().size() <= level + 1;
    out.group = ElementOf(stored.path, level);
    if (is_last && RoleOf(out.group) == Role::kNone) out.group = {};
  } else {
    out.group = below.substr(0, below.find_first_of("./"));
    if (RoleOf(out.group) == Role::kNone) out.group = {};
  }
  out.role = RoleOf(out.group);
  const bool has_prefix = !out.group.empty() && below.starts_with(out.group) &&
                          below.size() > out.group.size() + 1 && below[out.group.size()] == '.';
  if (has_prefix) out.prefix_bytes = wrapper_bytes + out.group.size() + 1;
  return out;
}

// All entries with their groups, and what parts these make.
class Chooser {
 public:
  Chooser(const Listing& listing, std::span<const Stored> stored)
      : listing_(listing), stored_(stored) {
    const size_t wrapper_bytes = WrapperBytes(stored);
    for (const Stored& one : stored) grouped_.push_back(GroupOf(one, wrapper_bytes));
    DropChanceGroups();
    for (const Grouped& grouped : grouped_) {
      groups_.insert(grouped.group);
      if (grouped.role == Role::kModel && (model_.empty() || grouped.group == kModelPart)) {
        model_ = grouped.group;
      }
    }
  }

  absl::StatusOr<Part> Choose() const {
    const std::string_view part = listing_.part.empty() ? Default() : listing_.part;
    std::vector<size_t> numbers;
    for (size_t i = 0; i < grouped_.size(); ++i) {
      if (IsOf(part, grouped_[i])) numbers.push_back(i);
    }
    const bool is_there = !numbers.empty() || stored_.empty() || part == kAllPart;
    if (is_there) return Take(part, numbers);
    const std::vector<std::string_view> parts = Parts();
    return NoSuchPart(listing_, parts);
  }

 private:
  // Names of a model may begin "model." by themselves: then others of it do not.
  void DropChanceGroups() {
    const auto is_of = [this](size_t i, Role role) {
      return stored_[i].path == nullptr && grouped_[i].role == role;
    };
    bool has_others = false;
    for (size_t i = 0; i < grouped_.size(); ++i) has_others = has_others || is_of(i, Role::kNone);
    if (!has_others) return;
    for (size_t i = 0; i < grouped_.size(); ++i) {
      if (is_of(i, Role::kModel)) grouped_[i] = {};
    }
  }

  bool IsModel(const Grouped& one) const {
    return model_.empty() ? one.role == Role::kNone : one.group == model_;
  }
  bool IsOf(std::string_view part, const Grouped& one) const {
    if (part == kAllPart) return true;
    if (part == kModelPart) return IsModel(one);
    if (part == kOptimizerPart) return one.role == Role::kOptimizer;
    if (part == kExtraPart) return !IsModel(one) && one.role != Role::kOptimizer;
    return !one.group.empty() && one.group == part;
  }
  bool Has(std::string_view part) const {
    return std::any_of(grouped_.begin(), grouped_.end(),
                       [&](const Grouped& one) { return IsOf(part, one); });
  }
  std::string_view Default() const {
    for (const char* const part : {kModelPart, kOptimizerPart}) {
      if (Has(part)) return part;
    }
    return kAllPart;
  }
  // A few, for a sentence.
  std::vector<std::string_view> Parts() const {
    constexpr size_t kMost = 20;
    std::vector<std::string_view> parts;
    std::copy_if(std::begin(kParts), std::end(kParts), std::back_inserter(parts),
                 [this](std::string_view part) { return part == kAllPart || Has(part); });
    for (const std::string_view group : groups_) {
      const bool is_new =
          !group.empty() && std::find(parts.begin(), parts.end(), group) == parts.end();
      if (is_new && group != model_ && parts.size() < kMost) parts.push_back(group);
    }
    return parts;
  }

  Part Take(std::string_view part, const std::vector<size_t>& numbers) const {
    Part out;
    // What else there is keeps the names that tell what it is, though it be one group.
    const bool strips = part != kAllPart && part != kExtraPart && !numbers.empty() &&
                        std::all_of(numbers.begin(), numbers.end(), [&](size_t number) {
                          return grouped_[number].group == grouped_[numbers.front()].group;
                        });
    std::map<std::string_view, uint32_t> groups = {{"", 0}};
    std::string_view stripped;
    for (const size_t number : numbers) {
      const Grouped& one = grouped_[number];
      Chosen& chosen = out.entries.emplace_back();
      chosen.stored = &stored_[number];
      const size_t skipped = strips ? one.prefix_bytes : 0;
      if (skipped > 0) stripped = chosen.stored->key.substr(0, skipped);
      chosen.name = chosen.stored->key.substr(skipped);
      const auto [at, is_new] = groups.emplace(one.group, out.groups.size());
      if (is_new) out.groups.emplace_back(one.group);
      chosen.group = at->second;
      if (one.role == Role::kOptimizer) chosen.kind = EntryKind::kOptimizer;
      if (chosen.stored->is_object) chosen.kind = EntryKind::kObject;
    }
    out.remark = Remark(part, numbers.size(), stripped);
    return out;
  }

  std::string Remark(std::string_view part, size_t count, std::string_view stripped) const {
    if (count == stored_.size()) {
      return stripped.empty() ? ""
                              : fmt::format("its names are read without {}; name {}#{} for them as "
                                            "they are",
                                            Quoted(Escape(stripped)), listing_.source, kAllPart);
    }
    std::vector<std::string_view> others = Parts();
    std::erase(others, part);
    std::string out = fmt::format("{} of its {} entries are read, part \"{}\"", count,
                                  stored_.size(), Escape(part));
    if (!stripped.empty()) {
      out += fmt::format(", by their names without {}", Quoted(Escape(stripped)));
    }
    return out + fmt::format("; name {}#{} for others", listing_.source,
                             Escape(fmt::format("{}", fmt::join(others, ", #"))));
  }

  static constexpr const char* kParts[] = {kModelPart, kOptimizerPart, kExtraPart, kAllPart};

  const Listing& listing_;
  const std::span<const Stored> stored_;
  std::vector<Grouped> grouped_;  // as stored_
  std::set<std::string_view> groups_;
  std::string_view model_;  // the group that is the model; empty: none is
};

}  // namespace

absl::StatusOr<Part> ChoosePart(const Listing& listing, std::span<const Stored> stored) {
  return Chooser(listing, stored).Choose();
}

}  // namespace ckptd::dcp

#include "common/source/formats/deepspeed/states.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd::deepspeed {
namespace {

using pickle::Kind;
using pickle::Value;

absl::Status Invalid(const std::string& path, const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("reading {}: {}; save or copy the checkpoint again", path, why),
                   {{"file", path}});
}

std::string Shown(std::string_view name) { return Quoted(Escape(name)); }

// A whole number, also as the value of an enumeration (ZeroStageEnum(2)).
std::optional<uint64_t> NumberOf(const Value* value) {
  if (value == nullptr) return std::nullopt;
  const Value* at = value;
  if (at->is(Kind::kRecord) && at->items().size() == 1) at = at->items()[0];
  if (!at->is(Kind::kInt) || at->integer() < 0) return std::nullopt;
  return static_cast<uint64_t>(at->integer());
}

// torch.Size, or any list of sizes, of a tensor that 64 bits can count.
std::optional<Shape> ShapeOf(const Value& value) {
  std::optional<Shape> out = torch::SizesOf(value);
  if (!out.has_value()) return std::nullopt;
  constexpr uint64_t kMostBytes = 16;  // of an element
  const auto elements = CheckedElements(*out);
  if (!elements.has_value() || !CheckedMultiply(*elements, kMostBytes).has_value()) {
    return std::nullopt;
  }
  return out;
}

// The names of a dict's texts. Empty for what is no dict.
template <typename Visit>
absl::Status ForEach(const Value* dict, Visit visit) {
  if (dict == nullptr) return absl::OkStatus();
  for (const pickle::Entry& entry : dict->entries()) {
    if (!entry.key->is(Kind::kText)) continue;
    CKPTD_RETURN_IF_ERROR(visit(std::string(entry.key->text()), *entry.value));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Parameter>> ParametersOf(const std::string& path, const Value* dict) {
  std::vector<Parameter> out;
  std::set<std::string> names;
  CKPTD_RETURN_IF_ERROR(ForEach(dict, [&](std::string name, const Value& value) -> absl::Status {
    std::optional<Shape> shape = ShapeOf(value);
    const bool is_one = names.insert(name).second && name.size() <= torch::kMaxNameBytes;
    if (!shape.has_value() || !is_one) {
      return Invalid(path, fmt::format("parameter {} is there twice, or has a shape or a name that "
                                       "none can have",
                                       Shown(name)));
    }
    out.push_back({std::move(name), *std::move(shape)});
    return absl::OkStatus();
  }));
  return out;
}

// A tensor that must be one.
absl::StatusOr<torch::Tensor> TensorAt(const torch::File& file, const Value& value,
                                       const std::string& name) {
  const absl::StatusOr<std::optional<torch::Tensor>> tensor = torch::TensorOf(file, value);
  const std::string& path = file.file.path;
  if (!tensor.ok()) {
    return WithContext(tensor.status(), fmt::format("reading {} of {}", Shown(name), path));
  }
  if (!tensor->has_value()) return Invalid(path, fmt::format("{} is no tensor", Shown(name)));
  return **tensor;
}

// A tensor whose elements lie one behind the other: a part of flat parameters.
absl::StatusOr<torch::Tensor> FlatAt(const torch::File& file, const Value& value,
                                     const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(torch::Tensor tensor, TensorAt(file, value, name));
  if (tensor.strides.empty() && tensor.shape.size() == 1 && BitsOf(tensor.dtype) % 8 == 0) {
    return tensor;
  }
  return Invalid(file.file.path,
                 fmt::format("{} is not flat, as parts of parameters are", Shown(name)));
}

// The numbers of a list, or one number; empty where there is something else.
std::vector<uint64_t> NumbersOf(const Value* value) {
  if (const auto one = NumberOf(value); one.has_value()) return {*one};
  std::vector<uint64_t> out;
  if (value == nullptr || !value->is(Kind::kList)) return out;
  for (const Value* item : value->items()) out.push_back(NumberOf(item).value_or(0));
  return out;
}

absl::Status ReadNames(const Value& root, ModelStates& out) {
  const Value* const buffers = root.Get("buffer_names");
  if (buffers != nullptr) {
    for (const Value* item : buffers->items()) {
      if (item->is(Kind::kText)) out.buffers.emplace(item->text());
    }
  }
  return ForEach(root.Get("shared_params"), [&](std::string name, const Value& of) {
    const bool is_name = of.is(Kind::kText) && name.size() <= torch::kMaxNameBytes;
    if (is_name) out.shared.emplace(std::move(name), of.text());
    return absl::OkStatus();
  });
}

absl::Status ReadShapes(const Value& root, ModelStates& out) {
  const std::string& path = out.file.file.path;
  const Value* const shapes = root.Get("param_shapes");
  if (shapes != nullptr && shapes->is(Kind::kDict)) {  // of one group, before there were several
    CKPTD_ASSIGN_OR_RETURN(out.groups.emplace_back(), ParametersOf(path, shapes));
  } else if (shapes != nullptr) {
    for (const Value* group : shapes->items()) {
      CKPTD_ASSIGN_OR_RETURN(out.groups.emplace_back(), ParametersOf(path, group));
    }
  }
  CKPTD_ASSIGN_OR_RETURN(out.frozen, ParametersOf(path, root.Get("frozen_param_shapes")));
  return ForEach(root.Get("frozen_param_fragments"), [&](std::string name, const Value& value) {
    absl::StatusOr<torch::Tensor> tensor = TensorAt(out.file, value, name);
    if (tensor.ok()) out.frozen_parts.emplace(std::move(name), *std::move(tensor));
    return tensor.status();
  });
}

absl::Status ReadOthers(const Value& root, ModelStates& out) {
  std::vector<const Value*> known;
  for (const char* key : {"module", "buffer_names", "optimizer", "param_shapes",
                          "frozen_param_shapes", "frozen_param_fragments", "shared_params"}) {
    known.push_back(root.Get(key));
  }
  CKPTD_ASSIGN_OR_RETURN(out.others, torch::Flatten(out.file, root, "", known));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> StageOf(const std::string& path, const Value& state) {
  const auto stage = NumberOf(state.Get("zero_stage"));
  if (stage.has_value() && *stage >= 1 && *stage <= 3) return *stage;
  // The bf16 optimizer, which partitions as stage 1 does, did not say.
  if (!stage.has_value() && state.Get("single_partition_of_fp32_groups") != nullptr) return 1;
  return Invalid(path, "it is no optimizer state of ZeRO-1, 2 or 3");
}

// The state that the optimizer keeps for a group: {name: tensor}. Numbers are no tensors.
absl::Status ReadStateOf(const torch::File& file, const Value* state, GroupOfRank& out) {
  return ForEach(state, [&](std::string name, const Value& value) -> absl::Status {
    const absl::StatusOr<std::optional<torch::Tensor>> tensor = torch::TensorOf(file, value);
    if (!tensor.ok()) {
      return WithContext(tensor.status(),
                         fmt::format("reading {} of {}", Shown(name), file.file.path));
    }
    if (tensor->has_value()) out.state.emplace(std::move(name), **tensor);
    return absl::OkStatus();
  });
}

// The states of all groups: {"state": {number of the group: ...}}, or a list where groups may be
// partitioned anew.
absl::Status ReadStates(const torch::File& file, const Value& base,
                        std::vector<GroupOfRank>& groups) {
  if (base.is(Kind::kList)) {
    for (size_t i = 0; i < std::min(groups.size(), base.items().size()); ++i) {
      CKPTD_RETURN_IF_ERROR(ReadStateOf(file, base.items()[i], groups[i]));
    }
    return absl::OkStatus();
  }
  const Value* const states = base.Get("state");
  if (states == nullptr) return absl::OkStatus();
  for (const pickle::Entry& entry : states->entries()) {
    const std::optional<uint64_t> group = NumberOf(entry.key);
    if (!group.has_value() || *group >= groups.size()) continue;
    CKPTD_RETURN_IF_ERROR(ReadStateOf(file, entry.value, groups[*group]));
  }
  return absl::OkStatus();
}

absl::Status ReadGroups(const torch::File& file, const Value& state, OptimizerStates& out) {
  const std::string_view key =
      out.stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  const Value* const parts = state.Get(key);
  if (parts == nullptr) return Invalid(file.file.path, fmt::format("it has no {}", key));
  for (const Value* part : parts->items()) {
    CKPTD_ASSIGN_OR_RETURN(out.groups.emplace_back().part, FlatAt(file, *part, std::string(key)));
  }
  const Value* const paddings = state.Get("param_alignment_paddings");
  if (paddings == nullptr || out.stage == 3) return absl::OkStatus();
  for (const Value* group : paddings->items()) out.paddings.push_back(NumbersOf(group));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelStates> ReadModelStates(const Storage& storage, const std::string& path) {
  ModelStates out;
  CKPTD_ASSIGN_OR_RETURN(out.file, torch::ReadFile(storage, path));
  const Value& root = *out.file.document.root;
  const Value* const module = root.Get("module");
  if (module == nullptr) return Invalid(path, "it is no model state of DeepSpeed");
  CKPTD_ASSIGN_OR_RETURN(out.module, torch::Flatten(out.file, *module, ""));
  CKPTD_RETURN_IF_ERROR(ReadNames(root, out));
  CKPTD_RETURN_IF_ERROR(ReadShapes(root, out));
  CKPTD_RETURN_IF_ERROR(ReadOthers(root, out));
  if (const Value* const optimizer = root.Get("optimizer"); optimizer != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(out.optimizer, torch::Flatten(out.file, *optimizer, ""));
  }
  const Value* const config = root.Get("ds_config");
  const Value* const zero = config == nullptr ? nullptr : config->Get("zero_optimization");
  if (zero != nullptr) out.stage = NumberOf(zero->Get("stage"));
  out.ranks = NumberOf(root.Get("dp_world_size")).value_or(0);
  return out;
}

absl::StatusOr<OptimizerStates> ReadOptimizerStates(const Storage& storage,
                                                    const std::string& path, Wanted wanted) {
  CKPTD_ASSIGN_OR_RETURN(const torch::File file, torch::ReadFile(storage, path));
  const Value* const state = file.document.root->Get("optimizer_state_dict");
  if (state == nullptr) return Invalid(path, "it is no optimizer state of DeepSpeed");
  OptimizerStates out;
  out.file = file.file;
  out.big_endian = file.big_endian;
  CKPTD_ASSIGN_OR_RETURN(out.stage, StageOf(path, *state));
  const std::vector<uint64_t> counts = NumbersOf(state->Get("partition_count"));
  if (!counts.empty()) out.ranks = *std::max_element(counts.begin(), counts.end());
  out.has_experts = std::any_of(counts.begin(), counts.end(),
                                [&](uint64_t count) { return count != out.ranks; });
  CKPTD_RETURN_IF_ERROR(ReadGroups(file, *state, out));
  const Value* const base =
      state->Get(out.stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  if (base == nullptr || wanted == Wanted::kWeights) return out;
  CKPTD_RETURN_IF_ERROR(ReadStates(file, *base, out.groups));
  if (wanted == Wanted::kState) return out;
  CKPTD_ASSIGN_OR_RETURN(out.optimizer, torch::Flatten(file, *base, ""));
  return out;
}

}  // namespace ckptd::deepspeed

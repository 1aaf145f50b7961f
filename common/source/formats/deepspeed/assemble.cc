#include "common/source/formats/deepspeed/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/deepspeed/flat_parts.h"
#include "common/source/piece.h"
#include "common/source/text.h"

namespace ckptd::deepspeed {
namespace {

using Names = std::vector<std::string>;

absl::Status Invalid(const std::string& path, const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("reading {}: {}; save or copy the checkpoint again", path, why),
                   {{"file", path}});
}

// A parameter, and where its elements lie in the ranks' parts of its group.
struct PlannedParameter {
  const Parameter* parameter = nullptr;
  Runs runs;
  // Stage 3 has one planned group: all groups together.
  size_t group = 0;
};

// Which tensor of a rank's group is meant: its part of the weights, or of a state; null: it has none.
using Selector = std::function<const torch::Tensor*(const GroupOfRank&)>;

const torch::Tensor* PartOf(const GroupOfRank& group) { return &group.part; }

class Assembler {
 public:
  explicit Assembler(const States& states);

  absl::Status AddWeights();
  absl::Status AddModule();
  absl::Status AddFrozen();
  void AddShared();
  absl::Status AddStates();
  void AddValues(const torch::Flattened& found, bool with_tensors);
  absl::StatusOr<OpenedCheckpoint> Finish();

  bool has_weights() const { return !states_.optimizers.empty(); }

 private:
  const ModelStates& model() const { return states_.models.front(); }
  uint32_t NumberOf(const SourceFile& file) const;
  bool is_stage3() const { return states_.stage == 3; }

  absl::Status PlanAll();
  absl::Status Plan();
  absl::Status PlanGroup(size_t group);
  absl::Status PlanStage3();
  // The part that each rank has of one of the planned groups; nullopt where some rank has no such
  // tensor, or one that is not cut like its part.
  std::optional<std::vector<FlatPart>> PartsOf(size_t group, const Selector& select) const;

  std::span<const PlannedParameter> PlannedOf(size_t group) const {
    const size_t begin = group == 0 ? 0 : ends_[group - 1];
    return std::span(plan_).subspan(begin, ends_[group] - begin);
  }
  absl::StatusOr<TensorEntry> EntryOf(const PlannedParameter& planned,
                                      const std::vector<FlatPart>& parts) const;

  bool Has(const std::string& name) const { return names_.contains(name); }
  absl::Status Add(TensorEntry entry);
  bool IsShared(const torch::NamedTensor& tensor) const;
  absl::Status AddOfModule(const torch::NamedTensor& tensor);
  absl::Status AddFrozenParts(const Parameter& parameter);
  absl::Status AddStatesWithoutZero();
  absl::Status AddState(size_t group, const std::string& name);
  absl::Status AddScalar(const PlannedParameter& planned, const std::string& name,
                         std::map<const torch::Tensor*, std::string>& first);
  const GroupOfRank* GroupOfFirstRun(const PlannedParameter& planned) const;

  const States& states_;
  OpenedCheckpoint out_;
  std::unordered_map<std::string, size_t> names_;  // of tensors, by name
  size_t pieces_ = 0;
  std::vector<PlannedParameter> plan_;
  std::vector<size_t> ends_;  // of each planned group in plan_
  Names from_module_;  // parameters that have no 32 bits
  Names left_out_;     // states that are not cut as parameters are
};

Assembler::Assembler(const States& states) : states_(states) {
  for (const ModelStates& model : states.models) out_.index.files.push_back(model.file.file);
  for (const OptimizerStates& one : states.optimizers) out_.index.files.push_back(one.file);
  std::sort(out_.index.files.begin(), out_.index.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
}

uint32_t Assembler::NumberOf(const SourceFile& file) const {
  const auto& files = out_.index.files;
  const auto at = std::lower_bound(
      files.begin(), files.end(), file.path,
      [](const SourceFile& one, const std::string& path) { return one.path < path; });
  return static_cast<uint32_t>(at - files.begin());
}

absl::Status Assembler::PlanGroup(size_t group) {
  const std::vector<Parameter>& parameters = model().groups[group];
  std::vector<uint64_t> parts;
  for (const OptimizerStates& rank : states_.optimizers) {
    parts.push_back(ElementCount(rank.groups[group].part.shape));
  }
  const auto& paddings = states_.optimizers.front().paddings;
  CKPTD_ASSIGN_OR_RETURN(
      std::vector<Runs> runs,
      RunsOfGroup(parameters, parts,
                  group < paddings.size() ? paddings[group] : std::vector<uint64_t>()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    plan_.push_back({&parameters[i], std::move(runs[i]), group});
  }
  ends_.push_back(plan_.size());
  return absl::OkStatus();
}

absl::Status Assembler::PlanStage3() {
  std::vector<Parameter> parameters;
  for (const auto& group : model().groups) {
    parameters.insert(parameters.end(), group.begin(), group.end());
  }
  std::vector<uint64_t> parts;
  for (const OptimizerStates& rank : states_.optimizers) {
    uint64_t part = 0;  // parts lie in files, so that the sum of all does not wrap
    for (const GroupOfRank& group : rank.groups) part += ElementCount(group.part.shape);
    parts.push_back(part);
    if (part != parts.front()) {
      return Invalid(rank.file.path, fmt::format("its part has {} elements, rank 0's has {}", part,
                                                 parts.front()));
    }
  }
  CKPTD_ASSIGN_OR_RETURN(std::vector<Runs> runs,
                         RunsOfStage3(parameters, parts.front(),
                                      static_cast<uint32_t>(parts.size())));
  size_t next = 0;
  for (const auto& group : model().groups) {
    for (const Parameter& parameter : group) {
      plan_.push_back({&parameter, std::move(runs[next++]), 0});
    }
  }
  ends_.push_back(plan_.size());
  return absl::OkStatus();
}

absl::Status Assembler::Plan() {
  const size_t groups = states_.optimizers.front().groups.size();
  for (const OptimizerStates& rank : states_.optimizers) {
    if (rank.groups.size() == groups) continue;
    return Invalid(rank.file.path, fmt::format("it has {} groups of parameters, rank 0's file has "
                                               "{}",
                                               rank.groups.size(), groups));
  }
  if (is_stage3()) return PlanStage3();
  if (model().groups.size() != groups) {
    return Invalid(model().file.file.path,
                   fmt::format("it names parameters of {} groups, and the optimizer has {}",
                               model().groups.size(), groups));
  }
  for (size_t group = 0; group < groups; ++group) CKPTD_RETURN_IF_ERROR(PlanGroup(group));
  return absl::OkStatus();
}

std::optional<std::vector<FlatPart>> Assembler::PartsOf(size_t group,
                                                        const Selector& select) const {
  std::vector<FlatPart> out;
  for (const OptimizerStates& rank : states_.optimizers) {
    std::vector<const torch::Tensor*> tensors;
    std::vector<uint64_t> lengths;
    const size_t begin = is_stage3() ? 0 : group;
    const size_t end = is_stage3() ? rank.groups.size() : group + 1;
    for (size_t i = begin; i < end; ++i) {
      lengths.push_back(ElementCount(rank.groups[i].part.shape));
      tensors.push_back(select(rank.groups[i]));
      if (lengths.back() == 0) continue;
      const torch::Tensor* const tensor = tensors.back();
      const bool is_flat = tensor != nullptr && tensor->shape.size() == 1 &&
                           tensor->strides.empty() && tensor->shape[0] >= lengths.back() &&
                           BitsOf(tensor->dtype) % 8 == 0;
      if (!is_flat) return std::nullopt;
    }
    out.push_back(FlatPartOf(NumberOf(rank.file), rank.big_endian, tensors, lengths));
  }
  return out;
}

absl::Status Assembler::Add(TensorEntry entry) {
  const std::string& path = out_.index.files[entry.pieces.front().file].path;
  pieces_ += entry.pieces.size();
  if (pieces_ > kMaxSourcePieces) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("reading {}: its parameters lie in more than {} pieces; load the "
                                 "module's weights (#module)",
                                 path, kMaxSourcePieces),
                     {{"file", path}});
  }
  if (!names_.emplace(entry.name, out_.index.tensors.size()).second) {
    return Invalid(path, fmt::format("there are two tensors {}", Quoted(entry.name)));
  }
  out_.index.tensors.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status Assembler::PlanAll() {
  const absl::Status planned = Plan();
  if (planned.ok() || FactsOf(planned).contains("file")) return planned;
  const std::string& path = model().file.file.path;
  return WithFact(WithContext(planned, "reading " + path), "file", path);
}

absl::StatusOr<TensorEntry> Assembler::EntryOf(const PlannedParameter& planned,
                                               const std::vector<FlatPart>& parts) const {
  absl::StatusOr<TensorEntry> entry = EntryOfRuns(*planned.parameter, planned.runs, parts);
  if (!entry.ok()) return WithFact(entry.status(), "file", model().file.file.path);
  return entry;
}

absl::Status Assembler::AddWeights() {
  CKPTD_RETURN_IF_ERROR(PlanAll());
  for (size_t group = 0; group < ends_.size(); ++group) {
    const std::optional<std::vector<FlatPart>> parts = PartsOf(group, PartOf);
    for (const PlannedParameter& planned : PlannedOf(group)) {
      CKPTD_ASSIGN_OR_RETURN(TensorEntry entry, EntryOf(planned, *parts));
      CKPTD_RETURN_IF_ERROR(Add(std::move(entry)));
    }
  }
  return absl::OkStatus();
}

absl::Status Assembler::AddOfModule(const torch::NamedTensor& tensor) {
  TensorEntry entry = torch::EntryOf(model().file, tensor, NumberOf(model().file.file));
  const bool is_buffer = model().buffers.contains(tensor.name);
  entry.kind = is_buffer ? EntryKind::kBuffer : EntryKind::kParameter;
  if (!is_buffer) from_module_.push_back(tensor.name);
  return Add(std::move(entry));
}

// Whether it is a tied parameter that is there by another name. Files have named others so, too.
bool Assembler::IsShared(const torch::NamedTensor& tensor) const {
  const auto shared = model().shared.find(tensor.name);
  const auto same = shared == model().shared.end() ? names_.end() : names_.find(shared->second);
  return same != names_.end() &&
         (is_stage3() || out_.index.tensors[same->second].shape == tensor.tensor.shape);
}

absl::Status Assembler::AddModule() {
  const torch::Flattened& module = model().module;
  std::map<std::string, Names> others;  // by the first of several names of one tensor
  for (const auto& [name, first] : module.aliases) others[first].push_back(name);
  for (const torch::NamedTensor& tensor : module.tensors) {
    if (Has(tensor.name) || IsShared(tensor)) continue;
    // A tied parameter that the optimizer knows by another name.
    const Names& same = others[tensor.name];
    const auto known = std::find_if(same.begin(), same.end(),
                                    [this](const std::string& name) { return Has(name); });
    if (known != same.end()) {
      out_.index.aliases.emplace(tensor.name, *known);
      continue;
    }
    const bool is_elsewhere = is_stage3() && !model().buffers.contains(tensor.name);
    if (!is_elsewhere) {
      CKPTD_RETURN_IF_ERROR(AddOfModule(tensor));
    } else if (ElementCount(tensor.tensor.shape) > 0) {
      return Invalid(model().file.file.path,
                     fmt::format("its tensor {} is not partitioned, as stage 3 has it",
                                 Quoted(tensor.name)));
    } else {
      return Invalid(model().file.file.path,
                     fmt::format("no rank has a part of its tensor {}", Quoted(tensor.name)));
    }
  }
  return absl::OkStatus();
}

absl::Status Assembler::AddFrozenParts(const Parameter& parameter) {
  std::vector<FlatPart> parts;
  Runs runs;
  const uint64_t elements = ElementCount(parameter.shape);
  const uint64_t ranks = is_stage3() ? states_.models.size() : 1;
  const uint64_t each = (elements + ranks - 1) / ranks;
  uint64_t left = elements;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const ModelStates& states = states_.models[rank];
    const std::string& path = states.file.file.path;
    const auto part = states.frozen_parts.find(parameter.name);
    const bool is_there = part != states.frozen_parts.end() && part->second.strides.empty() &&
                          ElementCount(part->second.shape) >= std::min(left, each);
    if (!is_there) {
      return Invalid(path, fmt::format("it has no part of the frozen parameter {}, or a shorter one",
                                       Quoted(parameter.name)));
    }
    if (left == 0) break;
    const uint64_t taken = std::min(left, each);
    parts.push_back(FlatPartOf(NumberOf(states.file.file), states.file.big_endian, {&part->second},
                               {taken}));
    runs.push_back({rank, 0, taken});
    left -= taken;
  }
  absl::StatusOr<TensorEntry> entry = EntryOfRuns(parameter, runs, parts);
  if (!entry.ok()) return WithFact(entry.status(), "file", model().file.file.path);
  from_module_.push_back(parameter.name);
  return Add(*std::move(entry));
}

absl::Status Assembler::AddFrozen() {
  for (const Parameter& parameter : model().frozen) {
    // Stages 1 and 2 have them whole in the module, mostly.
    const auto& tensors = model().module.tensors;
    const bool is_in_module =
        !is_stage3() && std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
          return tensor.name == parameter.name;
        });
    if (is_in_module || Has(parameter.name)) continue;
    CKPTD_RETURN_IF_ERROR(AddFrozenParts(parameter));
  }
  return absl::OkStatus();
}

void Assembler::AddShared() {
  auto& aliases = out_.index.aliases;
  const auto add = [&](const std::string& name, std::string of) {
    if (const auto at = aliases.find(of); at != aliases.end()) of = at->second;
    if (!Has(name) && Has(of)) aliases.emplace(name, std::move(of));
  };
  for (const auto& [name, of] : model().shared) add(name, of);
  for (const auto& [name, of] : model().module.aliases) add(name, of);
}

const GroupOfRank* Assembler::GroupOfFirstRun(const PlannedParameter& planned) const {
  if (planned.runs.empty()) return nullptr;
  const PartRun& run = planned.runs.front();
  const std::vector<GroupOfRank>& groups = states_.optimizers[run.rank].groups;
  if (!is_stage3()) return &groups[planned.group];
  uint64_t end = 0;
  for (const GroupOfRank& group : groups) {
    end += ElementCount(group.part.shape);
    if (run.begin < end) return &group;
  }
  return nullptr;
}

absl::Status Assembler::AddScalar(const PlannedParameter& planned, const std::string& name,
                                  std::map<const torch::Tensor*, std::string>& first) {
  const GroupOfRank* const group = GroupOfFirstRun(planned);
  const auto state = group == nullptr ? decltype(group->state.end())() : group->state.find(name);
  if (group == nullptr || state == group->state.end()) return absl::OkStatus();
  std::string full = fmt::format("state.{}.{}", planned.parameter->name, name);
  // All parameters of a group have the same.
  const auto [known, is_new] = first.emplace(&state->second, full);
  if (!is_new) {
    out_.index.aliases.emplace(std::move(full), known->second);
    return absl::OkStatus();
  }
  const OptimizerStates& rank = states_.optimizers[planned.runs.front().rank];
  TensorEntry entry;
  entry.name = std::move(full);
  entry.dtype = state->second.dtype;
  entry.kind = EntryKind::kOptimizer;
  entry.group = 1;
  entry.shape = state->second.shape;
  entry.big_endian = rank.big_endian;
  entry.pieces.push_back(torch::PieceOf(state->second, NumberOf(rank.file)));
  return Add(std::move(entry));
}

absl::Status Assembler::AddState(size_t group, const std::string& name) {
  const Selector select = [&name](const GroupOfRank& one) {
    const auto state = one.state.find(name);
    return state == one.state.end() ? nullptr : &state->second;
  };
  const std::optional<std::vector<FlatPart>> parts = PartsOf(group, select);
  const auto& groups = states_.optimizers.front().groups;
  const torch::Tensor* const one = select(groups[group]);
  const bool is_scalar = one != nullptr && one->shape.empty();
  if (!parts.has_value() && !is_scalar) {
    left_out_.push_back(name);
    return absl::OkStatus();
  }
  std::map<const torch::Tensor*, std::string> first;
  for (const PlannedParameter& planned : PlannedOf(group)) {
    if (is_scalar) {
      CKPTD_RETURN_IF_ERROR(AddScalar(planned, name, first));
      continue;
    }
    CKPTD_ASSIGN_OR_RETURN(TensorEntry entry, EntryOf(planned, *parts));
    entry.name = fmt::format("state.{}.{}", entry.name, name);
    entry.kind = EntryKind::kOptimizer;
    entry.group = 1;
    CKPTD_RETURN_IF_ERROR(Add(std::move(entry)));
  }
  return absl::OkStatus();
}

absl::Status Assembler::AddStatesWithoutZero() {
  for (const torch::NamedTensor& tensor : model().optimizer.tensors) {
    TensorEntry entry = torch::EntryOf(model().file, tensor, NumberOf(model().file.file));
    entry.kind = EntryKind::kOptimizer;
    entry.group = 1;
    CKPTD_RETURN_IF_ERROR(Add(std::move(entry)));
  }
  out_.index.aliases = model().optimizer.aliases;
  return absl::OkStatus();
}

absl::Status Assembler::AddStates() {
  out_.index.groups.push_back("optimizer");
  if (!has_weights()) return AddStatesWithoutZero();
  CKPTD_RETURN_IF_ERROR(PlanAll());
  const auto& groups = states_.optimizers.front().groups;
  for (size_t group = 0; group < std::min(ends_.size(), groups.size()); ++group) {
    for (const auto& [name, tensor] : groups[group].state) {
      CKPTD_RETURN_IF_ERROR(AddState(group, name));
    }
  }
  return absl::OkStatus();
}

void Assembler::AddValues(const torch::Flattened& found, bool with_tensors) {
  out_.index.values.insert(found.values.begin(), found.values.end());
  out_.index.opaque.insert(found.opaque.begin(), found.opaque.end());
  if (with_tensors || found.tensors.empty()) return;
  Names names;
  for (const torch::NamedTensor& tensor : found.tensors) names.push_back(tensor.name);
  out_.remarks.push_back(fmt::format("{} tensors of the client's state are left out: {}",
                                     names.size(), Listed(names)));
}

absl::StatusOr<OpenedCheckpoint> Assembler::Finish() {
  CKPTD_RETURN_IF_ERROR(FinishTensors(out_.index));
  if (has_weights() && !from_module_.empty()) {
    out_.remarks.push_back(
        fmt::format("{} parameters are not among the optimizer's 32-bit weights, and are taken "
                    "from the module as it was saved: {}",
                    from_module_.size(), Listed(from_module_)));
  }
  if (!left_out_.empty()) {
    out_.remarks.push_back(fmt::format("states of the optimizer are left out that are not cut as "
                                       "its parameters are: {}",
                                       Listed(left_out_)));
  }
  return std::move(out_);
}

}  // namespace

absl::StatusOr<OpenedCheckpoint> AssembleModel(const States& states) {
  Assembler assembler(states);
  if (assembler.has_weights()) CKPTD_RETURN_IF_ERROR(assembler.AddWeights());
  CKPTD_RETURN_IF_ERROR(assembler.AddFrozen());
  CKPTD_RETURN_IF_ERROR(assembler.AddModule());
  assembler.AddShared();
  assembler.AddValues(states.models.front().others, false);
  return assembler.Finish();
}

absl::StatusOr<OpenedCheckpoint> AssembleOptimizer(const States& states) {
  Assembler assembler(states);
  CKPTD_RETURN_IF_ERROR(assembler.AddStates());
  assembler.AddValues(states.optimizers.empty() ? states.models.front().optimizer
                                                : states.optimizers.front().optimizer,
                      true);
  return assembler.Finish();
}

}  // namespace ckptd::deepspeed

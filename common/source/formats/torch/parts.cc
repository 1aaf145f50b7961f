#include "common/source/formats/torch/parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/torch/text_of.h"

namespace ckptd::torch {
namespace {

using pickle::Entry;
using pickle::Kind;
using pickle::Value;

// The keys of models and optimizers in files of Lightning, torchvision, timm, DeepSpeed, nnU-Net
// and PyTorch's own tutorials; the first that is there counts.
constexpr auto kModelKeys = std::to_array<std::string_view>(
    {"state_dict", "model_state_dict", "model", "module", "network_weights", "net"});
constexpr auto kOptimizerKeys = std::to_array<std::string_view>(
    {"optimizer_states", "optimizer_state_dict", "optimizer", "optim"});
constexpr std::string_view kOptimizerGroup = "optimizer";
constexpr std::string_view kExtraGroup = "extra";
// A tensor that is all that a file holds.
constexpr std::string_view kAlone = "tensor";

bool IsDict(const Value* value) { return value != nullptr && value->is(Kind::kDict); }

// torch.optim's state_dict() itself.
bool IsOptimizerState(const Value& root) {
  const Value* const groups = root.Get("param_groups");
  return IsDict(root.Get("state")) && groups != nullptr && groups->is(Kind::kList);
}

// An entry of the root that holds others; a key of nullptr: none.
Entry FindEntry(const Value& root, std::span<const std::string_view> keys) {
  for (const std::string_view key : keys) {
    for (const Entry& entry : root.entries()) {
      if (!entry.key->IsText(key)) continue;
      const Kind kind = entry.value->kind();
      if (kind == Kind::kDict || kind == Kind::kList || kind == Kind::kRecord) return entry;
    }
  }
  return {};
}

std::string Shown(std::string_view name) { return Quoted(Escape(name)); }

std::string Below(const std::string& prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name);
}

class Taker {
 public:
  Taker(const File& file, const PartOptions& options)
      : file_(file), options_(options), root_(*file.document.root) {}

  absl::StatusOr<TakenPart> Take();

 private:
  bool Wants(std::string_view part) const { return options_.part == part; }
  bool WantsModel() const { return options_.part.empty() || Wants("model"); }

  absl::Status TakeModel(Flattened flat);
  absl::Status TakeOptimizer();
  absl::Status TakeExtra();
  absl::Status TakeAll();
  absl::Status Lacks(std::span<const std::string_view> parts) const;
  // The parts of a dict that is no optimizer's state.
  std::vector<std::string_view> Parts() const;
  absl::Status CheckReadable(const Flattened& flat) const;
  // Appends tensors that are all of one group.
  void Add(Flattened flat, std::string_view group);
  void StripWrappers(Flattened& flat);
  void RemarkPart(std::string_view key);
  void RemarkRefused();

  const File& file_;
  const PartOptions& options_;
  const Value& root_;
  Entry model_;      // of the root; without a key: none
  Entry optimizer_;
  TakenPart out_;
};

absl::Status Taker::Lacks(std::span<const std::string_view> parts) const {
  Listing listing;
  listing.source = file_.file.path;
  listing.part = options_.part;
  return NoSuchPart(listing, parts);
}

std::vector<std::string_view> Taker::Parts() const {
  const size_t known = (model_.key != nullptr ? 1 : 0) + (optimizer_.key != nullptr ? 1 : 0);
  std::vector<std::string_view> parts;
  if (model_.key != nullptr || known == 0) parts.push_back("model");
  if (optimizer_.key != nullptr) parts.push_back(kOptimizerGroup);
  if (known > 0 && root_.entries().size() > known) parts.push_back(kExtraGroup);
  parts.push_back("all");
  return parts;
}

absl::Status Taker::CheckReadable(const Flattened& flat) const {
  if (!flat.tensors.empty() || options_.may_lack_tensors) return absl::OkStatus();
  std::string why;
  if (!flat.refused.empty()) {
    const auto& [name, status] = *flat.refused.begin();
    why = flat.refused.size() == 1
              ? fmt::format("its tensor {} cannot be read: {}", Shown(name), MessageOf(status))
              : fmt::format("none of its {} tensors can be read, such as {}: {}",
                            flat.refused.size(), Shown(name), MessageOf(status));
  } else if (root_.is(Kind::kRecord)) {
    why = fmt::format("it holds an object of class {} and no tensor; name the file of the weights",
                      Escape(root_.ClassName()));
  } else {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("opening {}: {}", file_.file.path, why),
                   {{"file", file_.file.path}});
}

void Taker::Add(Flattened flat, std::string_view group) {
  for (NamedTensor& tensor : flat.tensors) {
    if (group == kOptimizerGroup) tensor.kind = EntryKind::kOptimizer;
    if (group == kExtraGroup) tensor.kind = EntryKind::kBuffer;
    out_.tensors.push_back({std::move(tensor), std::string(group)});
  }
  flat.tensors.clear();
  out_.rest = std::move(flat);
}

// Where one begins all names, the wrapper was around the whole model. That of DDP and DataParallel,
// and that of torch.compile.
void Taker::StripWrappers(Flattened& flat) {
  if (!options_.strips_wrappers || flat.tensors.empty()) return;
  std::string stripped;
  const auto begins_all = [&flat, &stripped](std::string_view wrapper) {
    const std::string prefix = stripped + std::string(wrapper);
    const auto begins = [&prefix](const std::string& name) { return name.starts_with(prefix); };
    return std::all_of(flat.tensors.begin(), flat.tensors.end(),
                       [&](const NamedTensor& tensor) { return begins(tensor.name); }) &&
           std::all_of(flat.aliases.begin(), flat.aliases.end(),
                       [&](const auto& alias) { return begins(alias.first); });
  };
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view wrapper : {"module.", "_orig_mod."}) {
      if (!begins_all(wrapper)) continue;
      stripped += wrapper;
      found = true;
    }
  }
  if (stripped.empty()) return;
  for (NamedTensor& tensor : flat.tensors) tensor.name.erase(0, stripped.size());
  std::map<std::string, std::string> aliases;
  for (const auto& [alias, name] : flat.aliases) {
    aliases.emplace(alias.substr(stripped.size()), name.substr(stripped.size()));
  }
  flat.aliases = std::move(aliases);
  out_.remarks.push_back(fmt::format("left the prefix {} off all {} names of tensors; name "
                                     "{}#all for the names as they are in the file",
                                     Shown(stripped), flat.tensors.size() + flat.aliases.size(),
                                     file_.file.path));
}

void Taker::RemarkPart(std::string_view key) {
  std::vector<std::string> others;
  for (const Entry& entry : root_.entries()) {
    if (!entry.key->IsText(key)) others.push_back(Escape(KeyText(*entry.key)));
  }
  std::vector<std::string_view> parts = Parts();
  std::erase(parts, options_.part.empty() ? "model" : std::string_view(options_.part));
  out_.remarks.push_back(fmt::format("took what lies below {} of {}, by names without that key; "
                                     "besides there {} {}: #{}",
                                     Shown(key), file_.file.path, others.size() == 1 ? "is" : "are",
                                     Listed(others), fmt::join(parts, ", #")));
}

void Taker::RemarkRefused() {
  constexpr size_t kMostReasons = 8;
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const auto& [name, status] : out_.rest.refused) {
    by_reason[MessageOf(status)].push_back(Escape(name));
    out_.rest.opaque.emplace(name, "torch.Tensor");
  }
  size_t left = kMostReasons;
  for (const auto& [reason, names] : by_reason) {
    if (left-- == 0) break;
    out_.remarks.push_back(fmt::format("left out {} of {}: {}", Listed(names), file_.file.path,
                                       reason));
  }
}

absl::Status Taker::TakeModel(Flattened flat) {
  CKPTD_RETURN_IF_ERROR(CheckReadable(flat));
  StripWrappers(flat);
  Add(std::move(flat), "");
  return absl::OkStatus();
}

absl::Status Taker::TakeOptimizer() {
  CKPTD_ASSIGN_OR_RETURN(Flattened flat, Flatten(file_, *optimizer_.value, options_.prefix));
  Add(std::move(flat), kOptimizerGroup);
  RemarkPart(optimizer_.key->text());
  return absl::OkStatus();
}

absl::Status Taker::TakeExtra() {
  std::vector<const Value*> others;
  for (const Entry& entry : {model_, optimizer_}) {
    if (entry.key != nullptr) others.push_back(entry.value);
  }
  CKPTD_ASSIGN_OR_RETURN(Flattened flat, Flatten(file_, root_, options_.prefix, others, {},
                                                 options_.keeps_types));
  AddTypes(flat.types, options_.prefix, flat.opaque.size(), flat.values);
  Add(std::move(flat), kExtraGroup);
  return absl::OkStatus();
}

// Everything by its full name; what an optimizer keeps is known by its key.
absl::Status Taker::TakeAll() {
  CKPTD_ASSIGN_OR_RETURN(
      Flattened flat, Flatten(file_, root_, options_.prefix, {}, {}, options_.keeps_types));
  CKPTD_RETURN_IF_ERROR(CheckReadable(flat));
  AddTypes(flat.types, options_.prefix, flat.opaque.size(), flat.values);
  if (!flat.tensors.empty() && flat.tensors.front().name.empty() && !root_.is(Kind::kDict)) {
    flat.tensors.front().name = kAlone;
  }
  if (!Wants("all")) StripWrappers(flat);
  const auto begins = [this](const Entry& entry, const std::string& name) {
    return entry.key != nullptr &&
           name.starts_with(Below(options_.prefix, entry.key->text()) + ".");
  };
  std::vector<NamedTensor> tensors = std::exchange(flat.tensors, {});
  out_.rest = std::move(flat);
  const bool is_optimizer = IsOptimizerState(root_);  // it looks at all keys
  for (NamedTensor& tensor : tensors) {
    std::string_view group;
    if (is_optimizer || begins(optimizer_, tensor.name)) {
      group = kOptimizerGroup;
      tensor.kind = EntryKind::kOptimizer;
    } else if (model_.key != nullptr && !begins(model_, tensor.name)) {
      group = kExtraGroup;
    }
    out_.tensors.push_back({std::move(tensor), std::string(group)});
  }
  return absl::OkStatus();
}

absl::StatusOr<TakenPart> Taker::Take() {
  const bool is_dict = root_.is(Kind::kDict);
  const bool is_optimizer = is_dict && IsOptimizerState(root_);
  if (is_dict && !is_optimizer) {
    model_ = FindEntry(root_, kModelKeys);
    optimizer_ = FindEntry(root_, kOptimizerKeys);
  }
  std::optional<Flattened> model;
  if (model_.key != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(model, Flatten(file_, *model_.value, options_.prefix));
    // A "model" that only describes one holds no tensor.
    if (model->tensors.empty() && model->refused.empty()) model_ = {};
  }
  absl::Status status;
  if (Wants("all") || (is_optimizer && (options_.part.empty() || Wants("optimizer")))) {
    status = TakeAll();
  } else if (WantsModel() && model_.key != nullptr) {
    status = TakeModel(*std::move(model));
    RemarkPart(model_.key->text());
  } else if (is_optimizer) {
    constexpr std::string_view kParts[] = {kOptimizerGroup, "all"};
    status = Lacks(kParts);
  } else if (WantsModel()) {
    status = TakeAll();
  } else if (Wants("optimizer") && optimizer_.key != nullptr) {
    status = TakeOptimizer();
  } else if (Wants("extra") && is_dict && (model_.key != nullptr || optimizer_.key != nullptr)) {
    status = TakeExtra();
  } else {
    status = Lacks(Parts());
  }
  CKPTD_RETURN_IF_ERROR(status);
  RemarkRefused();
  return std::move(out_);
}

}  // namespace

absl::StatusOr<TakenPart> TakePart(const File& file, const PartOptions& options) {
  return Taker(file, options).Take();
}

}  // namespace ckptd::torch

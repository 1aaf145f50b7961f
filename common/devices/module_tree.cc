#include "common/devices/module_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/checked_math.h"
#include "common/layout/glob.h"

namespace ckptd {
namespace {

constexpr char kDoing[] = "finding the modules of a checkpoint";
constexpr size_t kMaxDepth = 64;
constexpr uint64_t kMaxBits = uint64_t{1} << 62;

absl::Status Refuse(const std::string& name, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("{}: {} {}", kDoing, name.substr(0, 200), why),
                   {{"tensor", name.substr(0, 200)}});
}

bool IsFloating(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kU16:
    case Dtype::kI32:
    case Dtype::kU32:
    case Dtype::kI64:
    case Dtype::kU64:
      return false;
    default:
      return true;
  }
}

// Bits of one element, as accelerate counts them.
uint32_t CountedBits(const TensorEntry& tensor, Dtype cast_to, CountedGlobs& keep_f32) {
  if (tensor.dtype == Dtype::kBool) return 1;
  const uint32_t own = BitsOf(tensor.dtype);
  if (!IsFloating(tensor.dtype)) return own;
  if (keep_f32.FirstOf(tensor.name) < keep_f32.size()) return BitsOf(Dtype::kF32);
  return cast_to == Dtype::kUnspecified ? own : std::min(own, BitsOf(cast_to));
}

// The usual order of siblings, if nothing else is given: as in Llama and similar models.
int UsualPlace(std::string_view name) {
  const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
  if (has("embed") || name == "wte" || name == "wpe") return 0;
  if (has("head") || name == "score" || name == "classifier") return 8;
  if (has("norm") || name.starts_with("ln_")) return name.starts_with("q_") ? 6 : 7;
  if (has("attn") || has("attention") || name == "gate" || name == "router") return 1;
  if (name.starts_with("q_") || name == "query") return 1;
  if (name.starts_with("k_") || name == "key") return 2;
  if (name.starts_with("v_") || name == "value") return 3;
  if (name == "o_proj" || name == "out_proj" || name == "down_proj" || name == "c_proj") return 5;
  return 4;
}

// Numbers are sorted by value, and before other names.
std::tuple<bool, size_t, std::string> NaturalKey(const std::string& name) {
  const bool number = !name.empty() && name.find_first_not_of("0123456789") == name.npos;
  if (!number) return {true, 0, name};
  return {false, name.size() - std::min(name.find_first_not_of('0'), name.size() - 1), name};
}

// A node while names are still added.
struct Draft {
  std::map<std::string, std::unique_ptr<Draft>> below;
  bool is_tensor = false;
  uint64_t bits = 0;
  const TensorEntry* tensor = nullptr;  // the tensor whose bytes it has
};

class Builder {
 public:
  Builder(const ModuleTreeOptions& options, ModuleTree& out)
      : cast_to_(options.dtypes.cast_to),
        keep_f32_(options.dtypes.keep_f32),
        order_(options.order),
        out_(out) {}

  absl::Status Add(const std::string& name, const TensorEntry& tensor) {
    Draft* at = &root_;
    size_t depth = 0;
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = std::min(name.find('.', begin), name.size());
      if (end == begin) return Refuse(name, "has an empty part, which no module's name may have");
      if (++depth > kMaxDepth) return Refuse(name, "is nested too deeply to be a module's");
      if (at->is_tensor) return Refuse(name, "is inside of another tensor, by its name");
      auto& child = at->below[name.substr(begin, end - begin)];
      if (child == nullptr) child = std::make_unique<Draft>();
      at = child.get();
      begin = end + 1;
    }
    if (!at->below.empty()) return Refuse(name, "is a tensor and a module, by its name");
    const auto elements = CheckedElements(tensor.shape);
    const auto bits = elements.has_value()
                          ? CheckedMultiply(*elements, CountedBits(tensor, cast_to_, keep_f32_))
                          : std::nullopt;
    if (!bits.has_value() || *bits > kMaxBits - total_) return Refuse(name, "is larger than any");
    total_ += *bits;
    at->is_tensor = true;
    at->bits = *bits;
    at->tensor = &tensor;
    return absl::OkStatus();
  }

  absl::Status Emit() {
    EmitNode("", root_);
    CKPTD_RETURN_IF_ERROR(keep_f32_.Check(kDoing));
    CKPTD_RETURN_IF_ERROR(order_.Check(kDoing));
    out_.warnings = keep_f32_.UnusedWarnings("keep_f32");
    const std::vector<std::string> unused = order_.UnusedWarnings("order");
    out_.warnings.insert(out_.warnings.end(), unused.begin(), unused.end());
    for (auto& [tensor, names] : names_) {
      if (names.size() < 2) continue;
      std::sort(names.begin(), names.end());
      out_.ties.push_back(std::move(names));
    }
    return absl::OkStatus();
  }

 private:
  using Child = std::pair<const std::string, std::unique_ptr<Draft>>;

  size_t EmitNode(const std::string& name, const Draft& draft) {
    const size_t position = out_.nodes.size();
    out_.nodes.emplace_back();
    ModuleNode node;
    node.name = name;
    node.is_tensor = draft.is_tensor;
    if (draft.is_tensor) {
      std::vector<std::string>& names = names_[draft.tensor];
      node.has_size = names.empty();
      node.bits = node.has_size ? draft.bits : 0;
      names.push_back(name);
    }
    for (const Child* child : InOrder(name, draft)) {
      const size_t at = EmitNode(name.empty() ? child->first : name + "." + child->first,
                                 *child->second);
      (child->second->is_tensor ? node.tensors : node.modules).push_back(at);
      node.bits += out_.nodes[at].bits;
      node.has_size = node.has_size || out_.nodes[at].has_size;
    }
    node.end = out_.nodes.size();
    out_.nodes[position] = std::move(node);
    return position;
  }

  std::vector<const Child*> InOrder(const std::string& parent, const Draft& draft) {
    using Key = std::tuple<bool, size_t, int, std::tuple<bool, size_t, std::string>>;
    std::vector<std::pair<Key, const Child*>> sorted;
    for (const Child& child : draft.below) {
      const std::string name = parent.empty() ? child.first : parent + "." + child.first;
      sorted.emplace_back(Key{!child.second->is_tensor, order_.FirstOf(name),
                              UsualPlace(child.first), NaturalKey(child.first)},
                          &child);
    }
    std::sort(sorted.begin(), sorted.end());
    std::vector<const Child*> out;
    for (const auto& entry : sorted) out.push_back(entry.second);
    return out;
  }

  const Dtype cast_to_;
  CountedGlobs keep_f32_;
  CountedGlobs order_;
  ModuleTree& out_;
  Draft root_;
  uint64_t total_ = 0;
  std::map<const TensorEntry*, std::vector<std::string>> names_;
};

}  // namespace

absl::StatusOr<ModuleTree> ModuleTree::Make(const CheckpointIndex& index,
                                            const ModuleTreeOptions& options) {
  ModuleTree out;
  Builder builder(options, out);
  // The caller's ties come first, also if the checkpoint has both tensors.
  std::map<std::string, std::string> tied = options.tied;
  tied.insert(index.aliases.begin(), index.aliases.end());
  for (const TensorEntry& tensor : index.tensors) {
    if (tied.count(tensor.name) == 0) CKPTD_RETURN_IF_ERROR(builder.Add(tensor.name, tensor));
  }
  for (const auto& [name, of] : tied) {
    const TensorEntry* const tensor = index.Find(of);
    if (tensor == nullptr || tied.count(tensor->name) != 0) {
      return Refuse(name, fmt::format("is said to be tied with {}, which is no tensor of its own "
                                      "in the checkpoint",
                                      of.substr(0, 200)));
    }
    CKPTD_RETURN_IF_ERROR(builder.Add(name, *tensor));
  }
  CKPTD_RETURN_IF_ERROR(builder.Emit());
  return out;
}

}  // namespace ckptd

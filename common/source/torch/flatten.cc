#include "common/source/torch/flatten.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "common/base/escape.h"
#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/torch/children.h"
#include "common/source/torch/text_of.h"

namespace ckptd::torch {
namespace {

using pickle::Kind;
using pickle::Value;

// The cost of names is limited: a file pays for them by its pickle, but for a few.
constexpr size_t kFreeCost = 32 << 20;
constexpr size_t kCostPerByte = 48;
// The cost of looking at a value.
constexpr size_t kCostOfVisit = 64;

class Walk {
 public:
  Walk(const File& file, std::span<const Value* const> left_out, const Claim& claim,
       bool with_types)
      : file_(file),
        left_out_(left_out),
        claim_(claim),
        with_types_(with_types),
        budget_(kFreeCost + kCostPerByte * file.pickle_bytes) {}

  absl::StatusOr<Flattened> Run(const Value& value, const std::string& prefix) {
    path_ = prefix;
    CKPTD_RETURN_IF_ERROR(Visit(value, EntryKind::kParameter, false));
    while (!frames_.empty()) CKPTD_RETURN_IF_ERROR(Advance());
    NameAll();
    return std::move(out_);
  }

 private:
  // A container whose children are looked at one after the other.
  struct Frame {
    const Value* container = nullptr;
    std::vector<Child> children;
    size_t next = 0;
    size_t path_bytes = 0;  // of the container's own path
    bool in_record = false;
  };
  struct Found {
    Tensor tensor;
    EntryKind kind = EntryKind::kParameter;
  };
  struct Name {
    std::string text;
    size_t tensor = 0;  // of found_
  };
  // Which elements, of which storage.
  using Elements = std::tuple<std::string, uint64_t, Dtype, Shape, Shape, bool, bool>;

  absl::Status Advance() {
    Frame& frame = frames_.back();
    path_.resize(frame.path_bytes);
    if (frame.next == frame.children.size()) {
      open_.erase(frame.container);
      frames_.pop_back();
      return absl::OkStatus();
    }
    const Child& child = frame.children[frame.next++];
    if (!path_.empty()) path_ += '.';
    path_ += child.name;
    return Visit(*child.value, child.kind, frame.in_record);
  }

  absl::Status Visit(const Value& value, EntryKind kind, bool in_record) {
    CKPTD_RETURN_IF_ERROR(CheckName());
    CKPTD_RETURN_IF_ERROR(Pay(kCostOfVisit + path_.size()));
    if (value.is(Kind::kRecord)) {
      CKPTD_ASSIGN_OR_RETURN(const bool is_tensor, TakeTensor(value, kind));
      if (is_tensor) return absl::OkStatus();
      const Value& record = Unwrapped(value);
      if (claim_ != nullptr) {
        CKPTD_ASSIGN_OR_RETURN(const bool is_claimed, claim_(path_, record));
        if (is_claimed) return absl::OkStatus();
      }
      if (!in_record) CKPTD_RETURN_IF_ERROR(AddOpaque(NameOfRecord(record)));
      return Enter(record, true);
    }
    if (IsContainer(value)) return Enter(value, in_record);
    if (in_record) return absl::OkStatus();
    if (value.is(Kind::kPersistent)) return AddOpaque(NameOfPersistent(value));
    std::optional<std::string> json = PlainJson(value, kMaxValueBytes);
    if (!json.has_value()) {
      return AddOpaque(value.is(Kind::kText) ? "builtins.str" : "builtins.bytes");
    }
    CKPTD_RETURN_IF_ERROR(NoteTypes(&value));
    return AddValue(*std::move(json));
  }

  // A set of plain values is one.
  static bool IsContainer(const Value& value) {
    if (value.is(Kind::kSet)) return !PlainJson(value, kMaxValueBytes).has_value();
    return value.is(Kind::kDict) || value.is(Kind::kList) || value.is(Kind::kTuple);
  }

  absl::Status Enter(const Value& container, bool in_record) {
    if (!open_.insert(&container).second) return absl::OkStatus();  // it holds itself
    if (frames_.size() == kMaxNesting) {
      return PastLimit(fmt::format("it nests more than {} deep", kMaxNesting));
    }
    std::vector<Child> children;
    if (!ChildrenOf(container, budget_, children)) return TooManyNames();
    if (frames_.empty()) RemoveLeftOut(children);
    if (children.empty() && !in_record && !path_.empty()) {
      CKPTD_RETURN_IF_ERROR(NoteTypes(&container));
      CKPTD_RETURN_IF_ERROR(AddValue(container.is(Kind::kDict) ? "{}" : "[]"));
    }
    frames_.push_back({&container, std::move(children), 0, path_.size(), in_record});
    return absl::OkStatus();
  }

  void RemoveLeftOut(std::vector<Child>& children) const {
    children.erase(std::remove_if(children.begin(), children.end(),
                                  [this](const Child& child) {
                                    return std::find(left_out_.begin(), left_out_.end(),
                                                     child.value) != left_out_.end();
                                  }),
                   children.end());
  }

  absl::StatusOr<bool> TakeTensor(const Value& value, EntryKind kind) {
    absl::StatusOr<std::optional<Tensor>> tensor = TensorOf(file_, value);
    if (absl::IsUnimplemented(tensor.status())) {
      out_.refused.emplace(path_, tensor.status());
      return true;
    }
    if (!tensor.ok()) {
      return WithContext(tensor.status(), fmt::format("reading tensor {} of {}", Shown(path_),
                                                      file_.file.path));
    }
    if (!tensor->has_value()) return false;
    Elements elements = {(*tensor)->storage, (*tensor)->offset,     (*tensor)->dtype,
                         (*tensor)->shape,   (*tensor)->strides,    (*tensor)->conjugated,
                         (*tensor)->negated};
    const auto [at, is_new] = by_elements_.emplace(std::move(elements), found_.size());
    if (is_new) found_.push_back({**std::move(tensor), kind});
    names_.push_back({path_, at->second});
    CKPTD_RETURN_IF_ERROR(NoteTypes(nullptr));
    CKPTD_RETURN_IF_ERROR(RefuseAttributes(value));
    return true;
  }

  // Tensors that are attributes of others: no state_dict() has them.
  absl::Status RefuseAttributes(const Value& tensor) {
    for (const Value* const attributes : AttributesOf(tensor)) {
      for (const auto& [key, value] : attributes->entries()) {
        CKPTD_RETURN_IF_ERROR(Pay(kCostOfVisit + path_.size()));
        const absl::StatusOr<std::optional<Tensor>> found = TensorOf(file_, *value);
        if (found.ok() && !found->has_value()) continue;
        out_.refused.emplace(
            path_ + "." + KeyText(*key).substr(0, kMaxNameBytes),
            MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                      "it is an attribute of another tensor; save it by a key of its own",
                      {{"file", file_.file.path}}));
      }
    }
    return absl::OkStatus();
  }

  // Whether a key is told by its text in a path: it has no dot, and is no number of a list.
  static bool IsPlainKey(const Value& key) {
    const std::string_view text = key.text();
    return key.is(Kind::kText) && text.find('.') == std::string_view::npos &&
           text.find_first_not_of("0123456789") != std::string_view::npos;
  }

  // Notes what the path does not tell of itself and of `leaf`, or of a tensor (nullptr).
  absl::Status NoteTypes(const Value* leaf) {
    if (!with_types_) return absl::OkStatus();
    bool is_needed = false;
    std::string path;
    for (const Frame& frame : frames_) {
      const Child& child = frame.children[frame.next - 1];
      const bool is_entry = child.key != nullptr;
      const Kind kind = frame.container->kind();
      if (kind == Kind::kRecord) return absl::OkStatus();
      const auto key = is_entry ? TypedJson(*child.key, kMaxNameBytes) : child.name;
      if (!key.has_value()) return absl::OkStatus();
      is_needed = is_needed || kind == Kind::kTuple || (is_entry && !IsPlainKey(*child.key));
      path += fmt::format("{}[\"{}\", {}]", path.empty() ? "" : ", ",
                          is_entry ? "dict" : kind == Kind::kTuple ? "tuple" : "list", *key);
    }
    std::string types = fmt::format("\"path\": [{}]", path);
    const bool has_type = leaf != nullptr && (leaf->is(Kind::kBytes) || leaf->is(Kind::kComplex) ||
                                              leaf->is(Kind::kSet) || leaf->is(Kind::kTuple));
    const auto value = has_type ? TypedJson(*leaf, 2 * kMaxValueBytes) : std::nullopt;
    if (value.has_value()) types += fmt::format(", \"value\": {}", *value);
    if (!is_needed && !value.has_value()) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(Pay(types.size()));
    out_.types.emplace(path_, std::move(types));
    return absl::OkStatus();
  }

  absl::Status AddValue(std::string json) {
    CKPTD_RETURN_IF_ERROR(Pay(json.size()));
    if (!out_.values.emplace(path_, std::move(json)).second) twice_.insert(path_);
    return CheckCount();
  }
  absl::Status AddOpaque(std::string name) {
    CKPTD_RETURN_IF_ERROR(Pay(name.size()));
    if (!out_.opaque.emplace(path_, std::move(name)).second) twice_.insert(path_);
    return CheckCount();
  }

  absl::Status CheckCount() const {
    if (out_.values.size() + out_.opaque.size() <= kMaxSourceValues) return absl::OkStatus();
    return PastLimit(fmt::format("it holds more than {} values that are no tensors",
                                 kMaxSourceValues));
  }
  absl::Status CheckName() const {
    if (path_.size() <= kMaxNameBytes) return absl::OkStatus();
    return PastLimit(fmt::format("the name {} has more than {} bytes", Shown(path_),
                                 kMaxNameBytes));
  }
  absl::Status Pay(size_t cost) {
    if (cost > budget_) return TooManyNames();
    budget_ -= cost;
    return absl::OkStatus();
  }
  absl::Status TooManyNames() const {
    return PastLimit("it has so many names for the same things that they cannot be listed");
  }
  absl::Status PastLimit(std::string_view why) const {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("reading {}: {}; save less in one file", file_.file.path, why),
                     {{"file", file_.file.path}});
  }
  static std::string Shown(const std::string& name) { return Quoted(Escape(name)); }

  // Gives each tensor its first name that is its own, and makes aliases of the others.
  void NameAll() {
    FindShared();
    std::vector<std::string> first(found_.size());
    std::vector<bool> has_name(found_.size(), false);
    for (Name& name : names_) {
      if (twice_.contains(name.text)) continue;
      if (has_name[name.tensor]) {
        if (name.text != first[name.tensor]) {
          out_.aliases.emplace(std::move(name.text), first[name.tensor]);
        }
        continue;
      }
      has_name[name.tensor] = true;
      first[name.tensor] = name.text;
      Found& found = found_[name.tensor];
      out_.tensors.push_back({std::move(name.text), std::move(found.tensor), found.kind});
    }
    for (const std::string& name : twice_) {
      out_.values.erase(name);
      out_.opaque.erase(name);
      out_.types.erase(name);
      out_.refused.insert_or_assign(
          name, MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                          "it is one of several things that are called so; rename its keys",
                          {{"file", file_.file.path}}));
    }
  }

  // Adds to twice_ the names that lead to several things.
  void FindShared() {
    std::vector<const Name*> sorted;
    for (const Name& name : names_) sorted.push_back(&name);
    std::sort(sorted.begin(), sorted.end(),
              [](const Name* a, const Name* b) { return a->text < b->text; });
    for (size_t i = 1; i < sorted.size(); ++i) {
      const bool same = sorted[i]->text == sorted[i - 1]->text;
      if (same && sorted[i]->tensor != sorted[i - 1]->tensor) twice_.insert(sorted[i]->text);
    }
    for (const Name& name : names_) {
      const bool is_other = out_.values.contains(name.text) || out_.opaque.contains(name.text) ||
                            out_.refused.contains(name.text);
      if (is_other) twice_.insert(name.text);
    }
  }

  const File& file_;
  const std::span<const Value* const> left_out_;
  const Claim& claim_;
  const bool with_types_;
  size_t budget_;
  std::string path_;
  std::vector<Frame> frames_;
  std::unordered_set<const Value*> open_;  // containers of frames_
  std::vector<Found> found_;
  std::map<Elements, size_t> by_elements_;
  std::vector<Name> names_;
  std::unordered_set<std::string> twice_;
  Flattened out_;
};

}  // namespace

absl::StatusOr<Flattened> Flatten(const File& file, const Value& value, const std::string& prefix,
                                  std::span<const Value* const> left_out, const Claim& claim,
                                  bool with_types) {
  return Walk(file, left_out, claim, with_types).Run(value, prefix);
}

void AddTypes(const std::map<std::string, std::string>& types, const std::string& below,
              size_t others, std::map<std::string, std::string>& values) {
  const std::string head = JsonString(below, JsonCharacters::kUtf8);
  for (const auto& [name, json] : types) {
    if (values.size() + others >= kMaxSourceValues) return;
    values.emplace(".types." + name, fmt::format("{{\"below\": {}, {}}}", head, json));
  }
}

void SetSigns(const Tensor& tensor, TensorEntry& entry) {
  entry.negates_real = tensor.negated;
  entry.negates_imaginary = IsComplex(tensor.dtype) && tensor.negated != tensor.conjugated;
}

TensorEntry EntryOf(const File& file, const NamedTensor& tensor, uint32_t number) {
  TensorEntry entry;
  entry.name = tensor.name;
  entry.dtype = tensor.tensor.dtype;
  entry.kind = tensor.kind;
  entry.shape = tensor.tensor.shape;
  entry.big_endian = file.big_endian && BitsOf(entry.dtype) > 8;
  SetSigns(tensor.tensor, entry);
  entry.pieces.push_back(PieceOf(tensor.tensor, number));
  return entry;
}

}  // namespace ckptd::torch

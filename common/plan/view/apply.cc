#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/plan/view/geometry.h"
#include "common/plan/view/view.h"
#include "common/source/piece.h"

namespace ckptd::view {
namespace {

using Tensors = std::map<std::string, TensorEntry>;

// A name that a pattern matches, and what its parentheses matched; [0] is all of it.
struct Match {
  std::string name;
  std::vector<std::string> parts;
};

std::string Rewritten(const std::string& to, const std::vector<std::string>& parts) {
  std::string name;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] != '\\' || i + 1 == to.size()) {
      name += to[i];
    } else if (to[++i] >= '0' && to[i] <= '9') {
      name += parts[static_cast<size_t>(to[i] - '0')];  // the parser has counted the parentheses
    } else {
      name += to[i];
    }
  }
  return name;
}

// One rule at work on the tensors that the rules before it have left.
class Step {
 public:
  Step(const Rule& rule, size_t number, CheckpointIndex& index, Tensors& tensors)
      : rule_(rule), number_(number), index_(index), tensors_(tensors) {}

  absl::Status Run() {
    CKPTD_RETURN_IF_ERROR(Change());
    if (matches_ == 0 && !rule_.optional) {
      return Mismatch("", "it matches no tensor; correct its pattern, or make it \"optional\": true");
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Change() {
    switch (rule_.kind) {
      case RuleKind::kRename: return Rename();
      case RuleKind::kTranspose: return Transpose();
      case RuleKind::kSplit: return Split();
      case RuleKind::kFuse: return Fuse();
      case RuleKind::kStack: return Stack();
      case RuleKind::kUnstack: return Unstack();
      case RuleKind::kSlice: return Slice();
      case RuleKind::kTie: return Tie();
      case RuleKind::kUntie: return Untie();
      case RuleKind::kDrop: return Drop();
    }
    return absl::OkStatus();
  }

  absl::Status Mismatch(const std::string& tensor, const std::string& why) const {
    std::map<std::string, std::string> facts = {{"rule", fmt::format("{}", number_)}};
    if (!tensor.empty()) facts["tensor"] = tensor;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                     fmt::format("applying rule {} of the view ({} {}){}: {}", number_,
                                 NameOf(rule_.kind), rule_.from.front(),
                                 tensor.empty() ? "" : " to " + tensor, why),
                     facts);
  }
  absl::Status Done(const std::string& tensor, const std::string& why) const {
    return why.empty() ? absl::OkStatus() : Mismatch(tensor, why);
  }

  // The names of tensors that a pattern matches wholly, in their order. `with_tied`: a rule that
  // changes tensors makes tensors of further names first, which may match as well.
  std::vector<Match> Find(const std::string& pattern) {
    const re2::RE2 regex(pattern, re2::RE2::Quiet);
    SeparateTied(regex);
    std::vector<Match> found;
    std::vector<re2::StringPiece> parts(static_cast<size_t>(regex.NumberOfCapturingGroups()) + 1);
    for (const auto& [name, tensor] : tensors_) {
      if (!regex.Match(name, 0, name.size(), re2::RE2::ANCHOR_BOTH, parts.data(),
                       static_cast<int>(parts.size()))) {
        continue;
      }
      Match match{name, {}};
      for (const auto& part : parts) match.parts.emplace_back(part.data(), part.size());
      found.push_back(std::move(match));
    }
    matches_ += found.size();
    return found;
  }

  void SeparateTied(const re2::RE2& regex) {
    std::erase_if(index_.aliases, [&](const auto& alias) {
      const auto& [name, owner] = alias;
      if (!re2::RE2::FullMatch(name, regex) && !re2::RE2::FullMatch(owner, regex)) return false;
      Copy(name, owner);
      return true;
    });
  }
  void Copy(const std::string& name, const std::string& owner) {
    TensorEntry tensor = tensors_.at(owner);
    tensor.name = name;
    tensors_.emplace(name, std::move(tensor));
  }

  absl::Status Put(TensorEntry tensor, const std::string& name) {
    if (tensors_.contains(name) || index_.aliases.contains(name)) {
      return Mismatch(tensor.name, fmt::format("it would be called {}, as another tensor is", name));
    }
    tensor.name = name;
    tensors_.emplace(name, std::move(tensor));
    return absl::OkStatus();
  }
  TensorEntry Take(const std::string& name) { return std::move(tensors_.extract(name).mapped()); }

  absl::Status Rename() {
    const re2::RE2 regex(rule_.from.front(), re2::RE2::Quiet);
    std::map<std::string, std::string> changed;  // before -> now
    const auto look = [&](const std::string& name) {
      std::string now = name;
      if (re2::RE2::GlobalReplace(&now, regex, rule_.to.front())) changed.emplace(name, now);
    };
    for (const auto& [name, tensor] : tensors_) look(name);
    for (const auto& [name, owner] : index_.aliases) look(name);
    matches_ = changed.size();
    return GiveNames(changed);
  }

  // All at once, so that two names may change places.
  absl::Status GiveNames(const std::map<std::string, std::string>& changed) {
    const auto now = [&](const std::string& name) {
      const auto it = changed.find(name);
      return it == changed.end() ? name : it->second;
    };
    Tensors tensors = std::exchange(tensors_, {});
    const auto aliases = std::exchange(index_.aliases, {});
    for (auto& [name, tensor] : tensors) CKPTD_RETURN_IF_ERROR(Put(std::move(tensor), now(name)));
    for (const auto& [name, owner] : aliases) {
      if (tensors_.contains(now(name)) || !index_.aliases.emplace(now(name), now(owner)).second) {
        return Mismatch(name, fmt::format("it would be called {}, as another tensor is", now(name)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Transpose() {
    for (const Match& match : Find(rule_.from.front())) {
      TensorEntry& tensor = tensors_.at(match.name);
      std::vector<size_t> axes = rule_.axes;
      if (axes.empty()) {
        for (size_t dim = tensor.shape.size(); dim-- > 0;) axes.push_back(dim);
      }
      CKPTD_RETURN_IF_ERROR(Done(match.name, Permute(tensor, axes)));
    }
    return absl::OkStatus();
  }

  absl::Status Slice() {
    for (const Match& match : Find(rule_.from.front())) {
      CKPTD_RETURN_IF_ERROR(
          Done(match.name, Narrow(tensors_.at(match.name), rule_.axis, rule_.begin, rule_.end)));
    }
    return absl::OkStatus();
  }

  // How many elements of each part are in each group. Why not, if they do not come to `size`.
  std::string SizesInGroup(uint64_t size, size_t parts, std::vector<uint64_t>& sizes) const {
    if (sizes.empty()) {
      if (size % (parts * rule_.groups) != 0) {
        return fmt::format("its axis {} has {} elements, which are not {} equal parts; say \"sizes\"",
                           rule_.axis, size, parts * rule_.groups);
      }
      sizes.assign(parts, size / parts);
    }
    uint64_t sum = 0;
    for (uint64_t& part : sizes) {
      if (part > size || part % rule_.groups != 0) {
        return fmt::format("a size of {} is no number of elements in each of {} groups of an axis of "
                           "{}",
                           part, rule_.groups, size);
      }
      sum += part;
      part /= rule_.groups;
    }
    if (sum == size) return "";
    return fmt::format("its axis {} has {} elements, and its parts have {}", rule_.axis, size, sum);
  }

  absl::Status Split() {
    for (const Match& match : Find(rule_.from.front())) {
      const TensorEntry whole = Take(match.name);
      if (rule_.axis >= whole.shape.size()) {
        return Mismatch(match.name, fmt::format("it has no axis {}", rule_.axis));
      }
      std::vector<uint64_t> sizes = rule_.sizes;
      CKPTD_RETURN_IF_ERROR(
          Done(match.name, SizesInGroup(whole.shape[rule_.axis], rule_.to.size(), sizes)));
      uint64_t at = 0;
      for (size_t i = 0; i < rule_.to.size(); ++i) {
        TensorEntry part = whole;
        const uint64_t step = whole.shape[rule_.axis] / rule_.groups;
        CKPTD_RETURN_IF_ERROR(Done(match.name, TakeGroups(part, at, sizes[i], step)));
        at += sizes[i];
        CKPTD_RETURN_IF_ERROR(Put(std::move(part), Rewritten(rule_.to[i], match.parts)));
      }
    }
    return absl::OkStatus();
  }

  // It takes `count` elements from `first` on of each group of `step` elements along the axis.
  std::string TakeGroups(TensorEntry& tensor, uint64_t first, uint64_t count, uint64_t step) {
    if (count == 1 && step > 1) return TakeEvery(tensor, rule_.axis, first, step);
    const TensorEntry whole = tensor;
    std::string why = Narrow(tensor, rule_.axis, first, first + count);
    for (uint64_t group = 1; group < rule_.groups && why.empty(); ++group) {
      TensorEntry next = whole;
      const uint64_t begin = first + group * step;
      why = Narrow(next, rule_.axis, begin, begin + count);
      if (why.empty()) why = Append(tensor, next, rule_.axis);
      if (why.empty()) why = WhyTooMany(tensor);
    }
    return why;
  }
  static std::string WhyTooMany(const TensorEntry& tensor) {
    if (tensor.pieces.size() <= kMaxSourcePieces) return "";
    return fmt::format("it would have more than {} pieces", kMaxSourcePieces);
  }

  absl::Status Fuse() {
    // What the parentheses matched -> the name of each part.
    std::map<std::vector<std::string>, std::vector<Match>> sets;
    for (size_t i = 0; i < rule_.from.size(); ++i) {
      for (Match& match : Find(rule_.from[i])) {
        std::vector<std::string> key(match.parts.begin() + 1, match.parts.end());
        std::vector<Match>& set = sets[std::move(key)];
        if (set.size() != i) return LacksPart(match, i);
        set.push_back(std::move(match));
      }
    }
    for (const auto& [key, set] : sets) {
      if (set.size() != rule_.from.size()) return LacksPart(set.front(), set.size());
      CKPTD_RETURN_IF_ERROR(FuseSet(set));
    }
    return absl::OkStatus();
  }
  absl::Status LacksPart(const Match& match, size_t part) const {
    return Mismatch(match.name, fmt::format("the checkpoint lacks a part to go with it, which {} "
                                            "matches",
                                            rule_.from[part]));
  }

  absl::Status FuseSet(const std::vector<Match>& set) {
    std::vector<TensorEntry> parts;
    for (const Match& match : set) parts.push_back(Take(match.name));
    for (const TensorEntry& part : parts) {
      if (rule_.axis < part.shape.size() && part.shape[rule_.axis] % rule_.groups == 0) continue;
      return Mismatch(part.name, fmt::format("its axis {} is not there, or has no {} equal groups",
                                             rule_.axis, rule_.groups));
    }
    std::optional<TensorEntry> fused;
    for (uint64_t group = 0; group < rule_.groups; ++group) {
      for (TensorEntry next : parts) {
        const uint64_t count = next.shape[rule_.axis] / rule_.groups;
        std::string why = Narrow(next, rule_.axis, group * count, (group + 1) * count);
        if (why.empty() && fused.has_value()) why = Append(*fused, next, rule_.axis);
        if (why.empty() && fused.has_value()) why = WhyTooMany(*fused);
        CKPTD_RETURN_IF_ERROR(Done(next.name, why));
        if (!fused.has_value()) fused = std::move(next);
      }
    }
    return Put(*std::move(fused), Rewritten(rule_.to.front(), set.front().parts));
  }

  absl::Status Stack() {
    std::map<std::string, std::map<uint64_t, std::string>> sets;  // new name -> number -> name
    for (const Match& match : Find(rule_.from.front())) {
      uint64_t number = 0;
      if (!absl::SimpleAtoi(match.parts[IndexGroup()], &number)) {
        return Mismatch(match.name, "its (?P<index>...) is no number");
      }
      auto& set = sets[Rewritten(rule_.to.front(), match.parts)];
      if (!set.emplace(number, match.name).second) {
        return Mismatch(match.name, fmt::format("another tensor of the stack has number {}", number));
      }
    }
    for (const auto& [name, set] : sets) CKPTD_RETURN_IF_ERROR(StackSet(name, set));
    return absl::OkStatus();
  }
  size_t IndexGroup() const {
    const re2::RE2 regex(rule_.from.front(), re2::RE2::Quiet);
    return static_cast<size_t>(regex.NamedCapturingGroups().at("index"));
  }

  absl::Status StackSet(const std::string& name, const std::map<uint64_t, std::string>& set) {
    std::optional<TensorEntry> stacked;
    uint64_t expected = 0;
    for (const auto& [number, part] : set) {
      if (number != expected) {
        return Mismatch(part, fmt::format("number {} of {} is not there", expected, name));
      }
      ++expected;
      TensorEntry tensor = Take(part);
      std::string why = AddAxis(tensor, rule_.axis);
      if (why.empty() && stacked.has_value()) why = Append(*stacked, tensor, rule_.axis);
      CKPTD_RETURN_IF_ERROR(Done(part, why));
      if (!stacked.has_value()) stacked = std::move(tensor);
    }
    return Put(*std::move(stacked), name);
  }

  absl::Status Unstack() {
    for (const Match& match : Find(rule_.from.front())) {
      const TensorEntry whole = Take(match.name);
      const uint64_t count = rule_.axis < whole.shape.size() ? whole.shape[rule_.axis] : 0;
      for (uint64_t number = 0; number == 0 || number < count; ++number) {
        TensorEntry part = whole;
        std::string why = Narrow(part, rule_.axis, number, number + 1);
        if (why.empty()) why = DropAxis(part, rule_.axis);
        CKPTD_RETURN_IF_ERROR(Done(match.name, why));
        const std::string to = absl::StrReplaceAll(rule_.to.front(), {{"{}", fmt::format("{}", number)}});
        CKPTD_RETURN_IF_ERROR(Put(std::move(part), Rewritten(to, match.parts)));
      }
    }
    return absl::OkStatus();
  }

  // Patterns are names here.
  absl::Status Tie() {
    const std::string& name = rule_.to.front();
    if (!tensors_.contains(rule_.from.front())) return absl::OkStatus();
    matches_ = 1;
    if (tensors_.contains(name) || !index_.aliases.emplace(name, rule_.from.front()).second) {
      return Mismatch(rule_.from.front(), fmt::format("another tensor is called {}", name));
    }
    return absl::OkStatus();
  }

  absl::Status Untie() {
    const re2::RE2 regex(rule_.from.front(), re2::RE2::Quiet);
    matches_ = std::erase_if(index_.aliases, [&](const auto& alias) {
      if (!re2::RE2::FullMatch(alias.first, regex)) return false;
      Copy(alias.first, alias.second);
      return true;
    });
    return absl::OkStatus();
  }

  absl::Status Drop() {
    for (const Match& match : Find(rule_.from.front())) tensors_.erase(match.name);
    return absl::OkStatus();
  }

  const Rule& rule_;
  const size_t number_;
  CheckpointIndex& index_;
  Tensors& tensors_;
  size_t matches_ = 0;
};

}  // namespace

absl::StatusOr<CheckpointIndex> Apply(const View& view, CheckpointIndex index) {
  Tensors tensors;
  for (TensorEntry& tensor : index.tensors) {
    std::string name = tensor.name;
    tensors.emplace(std::move(name), std::move(tensor));
  }
  for (size_t i = 0; i < view.rules.size(); ++i) {
    CKPTD_RETURN_IF_ERROR(Step(view.rules[i], i + 1, index, tensors).Run());
  }
  index.tensors.clear();
  for (auto& [name, tensor] : tensors) index.tensors.push_back(std::move(tensor));
  return index;
}

}  // namespace ckptd::view

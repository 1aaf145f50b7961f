#include "common/layout/unexpected.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

// Marks the tensors of an index that a layout names.
class Marks {
 public:
  explicit Marks(const CheckpointIndex& index)
      : index_(index), marked_(index.tensors.size()), left_(index.tensors.size()) {}

  bool complete() const { return left_ == 0; }

  void Mark(const std::string& name) {
    // In most cases layouts name tensors in the order of the index.
    const bool next = next_ < index_.tensors.size() && index_.tensors[next_].name == name;
    const TensorEntry* found = next ? &index_.tensors[next_] : index_.Find(name);
    if (found == nullptr) return;
    const auto at = static_cast<size_t>(found - index_.tensors.data());
    next_ = at + 1;
    if (!marked_[at]) --left_;
    marked_[at] = true;
  }

  std::vector<std::string> Unmarked() const {
    std::vector<std::string> names;
    names.reserve(left_);
    for (size_t i = 0; i < marked_.size(); ++i) {
      if (!marked_[i]) names.push_back(index_.tensors[i].name);
    }
    return names;
  }

 private:
  const CheckpointIndex& index_;
  std::vector<bool> marked_;
  size_t left_;
  size_t next_ = 0;
};

}  // namespace

std::vector<std::string> UnexpectedTensors(const CheckpointIndex& index,
                                           std::span<const RankLayout* const> layouts) {
  Marks marks(index);
  for (const RankLayout* layout : layouts) {
    if (marks.complete()) break;
    for (const TargetSpec& target : layout->targets) {
      marks.Mark(target.name);
      for (const std::string& alias : target.aliases) marks.Mark(alias);
    }
  }
  return marks.Unmarked();
}

absl::Status CheckNothingUnexpected(const CheckpointIndex& index,
                                    std::span<const RankLayout* const> layouts) {
  const bool refuses = std::any_of(layouts.begin(), layouts.end(),
                                   [](const RankLayout* layout) { return layout->refuse_unexpected; });
  if (!refuses) return absl::OkStatus();
  const std::vector<std::string> names = UnexpectedTensors(index, layouts);
  if (names.empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kUnexpectedTensors,
                   fmt::format("{} has {} tensor(s) that no rank asks for: {}; it may be "
                               "another model's: load with strict names off (strict=False) to take "
                               "what both have",
                               index.source.empty() ? "the source" : index.source, names.size(),
                               NamesText(names)),
                   {{"tensor", names.front()}, {"unexpected", std::to_string(names.size())}});
}

}  // namespace ckptd

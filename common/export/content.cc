#include "common/export/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/glob.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "choosing tensors: " + why);
}

// Patterns, and which of them matched something.
class Patterns {
 public:
  explicit Patterns(const std::vector<std::string>& patterns)
      : patterns_(patterns), used_(patterns.size()) {}

  bool Match(const std::string& name) {
    bool any = false;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!MatchesGlob(patterns_[i], name)) continue;
      used_[i] = true;
      any = true;
    }
    return any;
  }
  // Appends those that matched nothing.
  void AddUnused(std::vector<std::string>& out) const {
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!used_[i]) out.push_back(patterns_[i]);
    }
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> used_;
};

bool IsOfTorch(const std::string& format) { return format == "torch"; }

// As the files have them: what stood in one dict lies in one file, one behind the other.
void SortAsInFiles(std::vector<OutTensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const OutTensor& a, const OutTensor& b) {
    const Piece& one = a.from->pieces.front();
    const Piece& other = b.from->pieces.front();
    return std::pair(one.file, one.offset) < std::pair(other.file, other.offset);
  });
}

absl::Status CheckNames(const Content& content) {
  std::set<std::string> names;
  for (const OutTensor& tensor : content.tensors) {
    for (const std::string* name = &tensor.name; name != nullptr;) {
      if (!names.insert(*name).second) {
        return Invalid(fmt::format("two tensors would be called {}; change the --rename rules, or "
                                   "leave one out with --exclude",
                                   Quoted(*name)));
      }
      const size_t next = name == &tensor.name
                              ? 0
                              : static_cast<size_t>(name - tensor.aliases.data()) + 1;
      name = next < tensor.aliases.size() ? &tensor.aliases[next] : nullptr;
    }
  }
  return absl::OkStatus();
}

OutTensor ToOut(const TensorEntry& entry, const std::vector<std::string>& names,
                const Choice& choice) {
  OutTensor out;
  out.from = &entry;
  out.dtype = choice.dtype.has_value() && IsCastable(entry.dtype) ? *choice.dtype : entry.dtype;
  out.bytes = ElementCount(entry.shape) / 8 * BitsOf(out.dtype) +
              ElementCount(entry.shape) % 8 * BitsOf(out.dtype) / 8;
  for (const std::string& name : names) {
    out.aliases.push_back(choice.rename == nullptr ? name : choice.rename(name));
  }
  out.name = std::move(out.aliases.front());
  out.aliases.erase(out.aliases.begin());
  std::sort(out.aliases.begin(), out.aliases.end());
  return out;
}

}  // namespace

uint64_t Content::bytes() const {
  uint64_t sum = 0;
  for (const OutTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

absl::Status CheckPatterns(const Choice& choice, std::initializer_list<const Content*> contents) {
  for (const std::string& pattern : (*contents.begin())->unmatched) {
    const bool nowhere = std::all_of(contents.begin(), contents.end(), [&](const Content* one) {
      return std::find(one->unmatched.begin(), one->unmatched.end(), pattern) !=
             one->unmatched.end();
    });
    if (!nowhere) continue;
    return Invalid(fmt::format("no name matches {}; `ckptctl inspect --tensors` lists the names",
                               Quoted(pattern)));
  }
  const bool left = std::any_of(contents.begin(), contents.end(),
                                [](const Content* one) { return !one->tensors.empty(); });
  if (left || (choice.include.empty() && choice.exclude.empty())) return absl::OkStatus();
  return Invalid("nothing is left; give other --include or --exclude patterns");
}

absl::StatusOr<Content> Choose(const CheckpointIndex& index, const Choice& choice) {
  std::map<std::string, std::vector<std::string>> names;  // of each tensor, the first one first
  for (const TensorEntry& tensor : index.tensors) names[tensor.name] = {tensor.name};
  for (const auto& [alias, of] : index.aliases) names[of].push_back(alias);
  Patterns include(choice.include);
  Patterns exclude(choice.exclude);
  Content content;
  content.index = &index;
  if (index.format == "safetensors") {
    content.metadata = index.metadata;
    std::erase_if(content.metadata,
                  [&index](const auto& entry) { return index.aliases.count(entry.first) != 0; });
  }
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.kind == EntryKind::kObject && !choice.objects) continue;
    std::vector<std::string>& of = names[tensor.name];
    std::erase_if(of, [&](const std::string& name) {
      const bool in = choice.include.empty() || include.Match(name);
      return exclude.Match(name) || !in;
    });
    if (!of.empty()) content.tensors.push_back(ToOut(tensor, of, choice));
  }
  include.AddUnused(content.unmatched);
  exclude.AddUnused(content.unmatched);
  if (!choice.may_match_nothing) {
    CKPTD_RETURN_IF_ERROR(CheckPatterns(choice, {&content}));
    if (content.tensors.empty()) return Invalid("there are no tensors; name another part or file");
  }
  if (IsOfTorch(index.format)) SortAsInFiles(content.tensors);
  CKPTD_RETURN_IF_ERROR(CheckNames(content));
  return content;
}

}  // namespace ckptd

// Views: the layout that a model wants of a checkpoint that has another one. A view turns the index
// of a source into another index over the same files: other names, axes, tensors. Nothing is read.
#ifndef CKPTD_COMMON_PLAN_VIEW_VIEW_H_
#define CKPTD_COMMON_PLAN_VIEW_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/index.h"

namespace ckptd::view {

enum class RuleKind : uint8_t {
  kRename,     // to[0] in place of each part of a name that from[0] matches
  kTranspose,  // dimension i becomes what axes[i] was; no axes: all in the other order
  kSplit,      // one tensor becomes to.size(), along an axis
  kFuse,       // from.size() tensors become one, along an axis
  kStack,      // tensors with numbers become one with another axis
  kUnstack,    // and back
  kSlice,      // elements [begin, end) of an axis
  kTie,        // to[0] becomes a further name of from[0]
  kUntie,      // a further name becomes a tensor of its own
  kDrop,       // no tensor any more
};

// "rename", "transpose" ...: the key that makes a rule in JSON.
std::string_view NameOf(RuleKind kind);

// Patterns are those of RE2. All but those of kRename match whole names. In `to`, \1 stands for
// what a pattern's first parentheses matched.
struct Rule {
  RuleKind kind = RuleKind::kRename;
  std::vector<std::string> from = {};
  std::vector<std::string> to = {};
  size_t axis = 0;
  std::vector<size_t> axes = {};
  // Elements of each part of kSplit and kFuse, all groups together; or their shares of the axis, as
  // {4, 1, 1} for q, k and v. Neither: kSplit makes equal ones, and kFuse takes any.
  std::vector<uint64_t> sizes = {};
  std::vector<uint64_t> shares = {};
  // The parts alternate so often along the axis: the groups of grouped attention in fused qkv.
  uint64_t groups = 1;
  uint64_t begin = 0;
  uint64_t end = 0;
  bool optional = false;  // whether it may match nothing
};

struct View {
  std::vector<Rule> rules;
};

inline constexpr size_t kMaxViewRules = 10'000;
inline constexpr size_t kMaxViewBytes = size_t{4} << 20;  // of its JSON
inline constexpr std::string_view kInverse = "inverse:";   // before a text: see ReadView

// {"rules": [{"rename": "^transformer\\.", "to": ""}, {"transpose": "(.*)\\.c_attn\\.weight"},
//   {"split": "(.*)\\.qkv\\.weight", "to": ["\\1.q.weight", "\\1.k.weight", "\\1.v.weight"], "axis": 0}]}
// Errors: InvalidArgument LAYOUT_INVALID, with the rule's number and what is wrong in it.
absl::StatusOr<View> ParseView(std::string_view json);

// The view that leads back: the inverse of each rule, in the other order. A rule's new names must
// hold all that its pattern does not fix: the pattern is text and parentheses, and \1 and so on stand
// once in `to`. Errors: InvalidArgument LAYOUT_INVALID with the rule, also for kSlice, kDrop, kUntie,
// and a kFuse that does not say how large its parts are.
absl::StatusOr<View> Inverse(const View& view);

// What a request names: the JSON of a view, or a set as RulesOfSet takes it; "inverse:" before it asks
// for its inverse; empty: one without rules. Errors: those of ParseView, RulesOfSet and Inverse.
absl::StatusOr<View> ReadView(std::string_view text);

// The index that `view` makes of `index`, its rules one after the other. Tensors keep their kind and
// group; a fused one has those of its first part. A rule that changes a tensor with several names
// makes tensors of these names first.
// Errors, with facts "rule" and "tensor": InvalidArgument LAYOUT_MISMATCH where a rule matches
// nothing and is not optional, does not fit a tensor, lacks a part, or makes a name that is there
// already. Pure; thread-safe.
absl::StatusOr<CheckpointIndex> Apply(const View& view, CheckpointIndex index);

// The same of a text that ReadView takes. Of an inverse also LAYOUT_MISMATCH where the view does not
// make `index` of what comes out.
absl::StatusOr<CheckpointIndex> SeenThrough(std::string_view text, CheckpointIndex index);

}  // namespace ckptd::view

#endif  // CKPTD_COMMON_PLAN_VIEW_VIEW_H_

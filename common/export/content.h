// The content of an export: which tensors of a source, under which names and dtypes. Pure.
#ifndef CKPTD_COMMON_EXPORT_CONTENT_H_
#define CKPTD_COMMON_EXPORT_CONTENT_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/index.h"

namespace ckptd {

struct OutTensor {
  std::string name;
  Dtype dtype = Dtype::kUnspecified;    // as written
  const TensorEntry* from = nullptr;    // its dtype may be another one; the shape is the same
  std::vector<std::string> aliases = {};  // other names of the same tensor, sorted
  uint64_t bytes = 0;                   // as written
};

// Refers to its index, which outlives it.
struct Content {
  const CheckpointIndex* index = nullptr;
  std::vector<OutTensor> tensors;
  std::map<std::string, std::string> metadata;  // of the files, for formats that have some
  std::vector<std::string> unmatched = {};      // patterns that no name matches

  uint64_t bytes() const;
};

struct Choice {
  // Patterns (common/layout/glob.h) of names before they are changed; no `include`: all.
  std::vector<std::string> include = {};
  std::vector<std::string> exclude = {};
  bool may_match_nothing = false;  // else each pattern matches a name, and something is left
  // The new name of an old one; null: it stays.
  std::function<std::string(const std::string&)> rename = nullptr;
  // Also entries that are no tensors (EntryKind::kObject), which DCP alone can hold.
  bool objects = false;
  // The new dtype of tensors that can be cast (IsCastable); unset: they stay as they are.
  std::optional<Dtype> dtype = std::nullopt;
};

// The order is that of the files for torch's, whose dicts have one, and of the names for others.
// An alias stays one, also where its tensor's first name is left out. Errors: InvalidArgument
// INVALID_REQUEST for a pattern that matches nothing, for two tensors that get one name, and where
// nothing is left.
absl::StatusOr<Content> Choose(const CheckpointIndex& index, const Choice& choice);

// For contents that were chosen by the same patterns. Errors: InvalidArgument INVALID_REQUEST for a
// pattern that matches a name of none of them, and where the patterns leave nothing of any.
absl::Status CheckPatterns(const Choice& choice, std::initializer_list<const Content*> contents);

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_CONTENT_H_
